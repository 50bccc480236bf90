"""`lbctl serve`, which runs the control plane.

This module contains only the command line. `lbctl.serve.app` connects the components.
"""

from __future__ import annotations

import gc
import os

import click

from lbctl.cli.command import Command
from lbctl.cli.fleet import paths_argument
from lbctl.cli.listen_address import address, picker_address
from lbctl.cli.options import options_of

option = options_of("serve")
_STATE_HELP = "Directory for persistent state (default: `control.state` of the fleet, or /var/lib/lbctl)."


@click.command(
    "serve",
    cls=Command,
    examples="""
    lbctl serve fleet.yaml
    # Log decisions without publishing them:
    lbctl serve --dry-run --state /tmp/lbctl fleet.yaml
    """,
)
@paths_argument
@options_of("")("--state", metavar="DIR", help=_STATE_HELP)
@option("--xds-bind", metavar="ADDRESS", help="Listen address for proxies (default: `control.xds.bind` of the fleet).")
@option("--api-bind", metavar="ADDRESS", help="Listen address of the API (default: `control.api.bind` of the fleet).")
@option(
    "--picker-bind", metavar="ADDRESS",
    help="Listen address of the picker; HTTP uses the next port (default: `control.picker.bind` of the fleet).",
)  # fmt: skip
@option(
    "--member", metavar="NAME", help="Name of this control-plane member (default: `control.member`, or the host name)."
)
@option("--dry-run", is_flag=True, help="Make and log decisions, but do not publish or save anything.")
@option("--insecure", is_flag=True, help="Allow xDS on non-loopback addresses without client certificates.")
def command(
    paths: tuple[str, ...], state: str | None, xds_bind: str | None, api_bind: str | None, picker_bind: str | None,
    member: str | None, dry_run: bool, insecure: bool,
) -> int:  # fmt: skip
    """Run the control plane.

    serve watches the files in PATH…, reads metrics, sets weights, determines health, controls rollouts, and updates the
    connected proxies. It logs to standard error. SIGHUP reloads the files, and SIGTERM stops the process within ten
    seconds. If the files have errors, serve keeps the last valid configuration.
    """
    if "-" in paths:
        raise click.UsageError("serve cannot watch standard input (-)")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's own log lines have a different format
    gc.disable()  # until startup has finished, because everything built until then remains in use
    from lbctl.serve.app import Options, run

    picker = picker_address("--picker-bind", picker_bind) if picker_bind else None
    binds = address("--xds-bind", xds_bind), address("--api-bind", api_bind), picker
    return run(Options(paths, state, *binds, member=member, dry_run=dry_run, insecure=insecure))

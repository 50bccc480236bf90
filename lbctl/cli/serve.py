"""`lbctl serve`: the control plane. Here is the command line alone; what it starts is wired in `lbctl.serve.app`."""

from __future__ import annotations

import gc
import os

import click

from lbctl.cli.command import Command
from lbctl.cli.fleet import paths_argument
from lbctl.cli.listen_address import address, picker_address
from lbctl.cli.options import options_of

option = options_of("serve")
_STATE_HELP = "Where it keeps what must survive; default: the fleet's `control.state`, else /var/lib/lbctl."


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
@option("--xds-bind", metavar="A", help="Where proxies connect; default: the fleet's `control.xds.bind`.")
@option("--api-bind", metavar="A", help="Where the API listens; default: the fleet's `control.api.bind`.")
@option(
    "--picker-bind", metavar="A",
    help="Where its picker listens, HTTP at the next port; default: the fleet's `control.picker.bind`.",
)  # fmt: skip
@option("--member", metavar="NAME", help="Its name among several; default: `control.member`, else the host's name.")
@option("--dry-run", is_flag=True, help="Decide and log; send nothing, keep nothing.")
@option("--insecure", is_flag=True, help="Let xDS listen beyond loopback without client certificates.")
def command(
    paths: tuple[str, ...], state: str | None, xds_bind: str | None, api_bind: str | None, picker_bind: str | None,
    member: str | None, dry_run: bool, insecure: bool,
) -> int:  # fmt: skip
    """Run the control plane of the fleet in PATH…: watch its files, drive its Envoys by xDS.

    Logs to standard error. SIGHUP reads the files again, SIGTERM ends it within ten seconds. Files with errors change
    nothing: what was served before still is.
    """
    if "-" in paths:
        raise click.UsageError("serve watches files: standard input cannot be watched")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its own lines would be no lines of this log
    gc.disable()  # until it serves: what is read and built before that stays
    from lbctl.serve.app import Options, run

    picker = picker_address("--picker-bind", picker_bind) if picker_bind else None
    binds = address("--xds-bind", xds_bind), address("--api-bind", api_bind), picker
    return run(Options(paths, state, *binds, member=member, dry_run=dry_run, insecure=insecure))

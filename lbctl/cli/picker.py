"""`lbctl picker`, which runs a picker on a machine without `serve`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lbctl.api.client import ServeClient
from lbctl.base import ports
from lbctl.cli.command import Command
from lbctl.cli.listen_address import picker_address
from lbctl.cli.options import options_of
from lbctl.cli.server_options import server_options

if TYPE_CHECKING:
    from lbctl.ir.proxies import ServerTls

_option = options_of("picker")


@click.command("picker", cls=Command, examples="lbctl picker --server https://lbctl.example:18080 --token-file token")
@_option(
    "--bind", metavar="ADDRESS", default=f"127.0.0.1:{ports.PICKER}", show_default=True,
    help="gRPC listen address. The next port serves HTTP, and on loopback also HTTP without TLS and UDP.",
)  # fmt: skip
@_option(
    "--pool", metavar="NAME",
    help="Serve only this pool. Kubernetes gateways do not name a pool in their queries.",
)  # fmt: skip
@_option("--tls-cert", metavar="FILE", help="Certificate for gRPC and HTTP, required on non-loopback addresses.")
@_option("--tls-key", metavar="FILE", help="Private key of the certificate.")
@_option("--tls-client-ca", metavar="FILE", help="CA bundle to verify the proxies' client certificates.")
@_option(
    "--state", metavar="DIR", type=click.Path(path_type=Path),
    help="Directory in which sessions and prompts are saved for a restart (default: not saved).",
)  # fmt: skip
@server_options()
def command(
    bind: str,
    pool: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    tls_client_ca: str | None,
    state: Path | None,
    remote: ServeClient,
) -> int:
    """Run a picker on a machine without serve.

    `lbctl serve` starts its own picker if a pool has `algorithm: pick`. Use this command on other machines that run
    proxies, and for Kubernetes gateways. If serve does not respond, the picker continues to use the last tables
    it received.
    """
    place, tls = picker_address("--bind", bind), _tls(tls_cert, tls_key, tls_client_ca)
    if not place.on_loopback and tls is None:
        raise click.UsageError(
            f"--bind: any client could use the picker on {place} (set --tls-cert, --tls-key and --tls-client-ca)"
        )
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's own log lines have a different format
    from lbctl.picker.launch import environment

    os.environ.update(environment())
    from lbctl.picker.process import PickerEndpoints
    from lbctl.picker.remote_link import ControlPlane, run

    return run(
        PickerEndpoints(place, tls),
        ControlPlane(remote.url, remote.token_for_stream, remote.ca),
        state / "picker-memory" if state else None,
        pool,
    )


def _tls(certificate: str | None, key: str | None, client_ca: str | None) -> ServerTls | None:
    from lbctl.ir.proxies import ServerTls

    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None or client_ca is None:
        raise click.UsageError("set all of --tls-cert, --tls-key and --tls-client-ca")
    return ServerTls(certificate, key, client_ca)

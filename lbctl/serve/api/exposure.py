"""Where the control plane may listen: beyond loopback only with what keeps strangers out.

Whoever can connect to the xDS port gets the fleet with its keys, and whoever can write to the API moves its traffic.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.proxies import Control
from lbctl.serve.api.authorization import read_token


def no_socket(reason: str) -> Diagnostic:
    """Return LB528: proxies of this machine can only use the TCP port."""
    return Diagnostic(
        "LB528",
        f"{reason}; proxies of this machine get no keys by TCP without client certificates",
        path=("control", "state"),
        severity="warning",
        hint="give a state directory with a shorter path, or control.xds.bind a unix: path",
    )


def problems(control: Control, token: Path | None, insecure: bool) -> Iterator[Diagnostic]:
    """Yield LB510 for xDS, LB511 for the API and LB512 for the traffic log where they would be open to strangers.

    `control` has the addresses of the command line in it; `token` is the file of the API's token.
    """
    tls = control.xds_tls
    if not control.xds_bind.on_loopback and not insecure and (tls is None or tls.client_ca is None):
        missing = "without TLS" if tls is None else "without client certificates"
        yield Diagnostic(
            "LB510",
            f"xDS on {control.xds_bind} {missing} would hand the fleet with its keys to whoever connects",
            path=("control", "xds", "bind"),
            hint="give control.xds.tls a certificate, a key and a client_ca, or say --insecure",
        )
    if not control.api_bind.on_loopback and (control.api_tls is None or not read_token(token)):
        missing = "without TLS" if control.api_tls is None else "without a token"
        yield Diagnostic(
            "LB511",
            f"the API on {control.api_bind} {missing} would be open to whoever connects",
            path=("control", "api", "bind"),
            hint="give control.api a tls and a token_file, or bind it to 127.0.0.1",
        )
    if not control.logs_bind.on_loopback:
        yield Diagnostic(
            "LB512",
            f"the traffic log on {control.logs_bind} would take counts from whoever sends them",
            path=("control", "logs", "bind"),
            hint="bind it to 127.0.0.1",
        )

"""Says whether a picker can be at its address: whether strangers could ask it, and whether another process is there.

The proxies of this control plane must not ask another process: it may be the picker of another `lbctl serve`, which
would choose among the replicas of another fleet and count requests that it does not have.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

from lbctl.apply.listening_sockets import bind_error, listening_sockets, owner
from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.address import Address
from lbctl.ir.proxies import ServerTls, picker_http

_INTERVAL = 1.0
"""Seconds between two looks whether an address is free."""


def taken_by(bind: Address) -> str:
    """Return which process has one of the ports of a picker at `bind`, or an empty string if all are free."""
    place, kind = _taken(bind) or (None, None)
    if place is None:
        return ""
    pid = owner(listening_sockets(place.port) or ()) if kind is socket.SOCK_STREAM else None
    transport = "" if kind is socket.SOCK_STREAM else " (UDP)"
    return f"{f'process {pid}' if pid else 'another process'} has {place}{transport}"


async def until_free(bind: Callable[[], Address | None]) -> None:
    """Wait until no other process has a port of a picker at the address that `bind` returns; at once without one."""
    while (place := bind()) is not None and _taken(place) is not None:
        await asyncio.sleep(_INTERVAL)


def _taken(bind: Address) -> tuple[Address, socket.SocketKind] | None:
    http = picker_http(bind)
    for place, kind in ((bind, socket.SOCK_STREAM), (http, socket.SOCK_STREAM), (http, socket.SOCK_DGRAM)):
        error = bind_error(place, kind)
        if error is not None and error.errno == errno.EADDRINUSE:
            return place, kind
    return None


def exposed(bind: Address, tls: ServerTls | None) -> Diagnostic | None:
    """Return LB513 for a picker that whoever connects could ask; None where TLS or loopback keeps strangers out."""
    if bind.on_loopback or (tls is not None and tls.client_ca is not None):
        return None
    missing = "without TLS" if tls is None else "without client certificates"
    return Diagnostic(
        "LB513",
        f"the picker on {bind} {missing} would take prompts from whoever connects, so it is not started",
        path=("control", "picker", "bind"),
        hint="give control.xds.tls a certificate, a key and a client_ca, bind it to 127.0.0.1, or say --insecure",
    )

"""Says whether a picker can be at its address: whether strangers could ask it, and whether another process is there.

The proxies of this control plane must not ask the picker of another `lbctl serve`, which would choose among the
replicas of another fleet and count requests that it does not have. An `lbctl picker` is taken for one of this fleet.
"""

from __future__ import annotations

import errno
import socket
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from lbctl.apply.listening_sockets import bind_error, listening_sockets, owner
from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.address import Address
from lbctl.ir.proxies import ServerTls, picker_http, picker_http_remote

_PROGRAM = 3
"""The number of leading arguments of a command line that are searched for lbctl, as in `python -m lbctl`."""


@dataclass(frozen=True, slots=True)
class Occupant:
    """Who has a port of a picker."""

    text: str
    """Who has which port, as the end of a sentence."""
    pid: int | None
    """The process; None where this user cannot see it."""

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended."""
        return self.pid is not None and not Path(f"/proc/{self.pid}").exists()

    @property
    def is_picker_alone(self) -> bool:
        """Whether it is an `lbctl picker`, which somebody has started for the proxies of this machine."""
        with suppress(OSError):
            names = [Path(item).name for item in Path(f"/proc/{self.pid}/cmdline").read_text().split("\0")]
            return ("lbctl", "picker") in pairwise(names[: _PROGRAM + 1])
        return False


def is_free(bind: Address) -> bool:
    """Return whether nobody has a port of a picker at `bind`."""
    return _busy(bind) is None


def occupant(bind: Address) -> Occupant | None:
    """Return who has a port of a picker at `bind`; None where all are free."""
    found = _busy(bind)
    if found is None:
        return None
    place, kind = found
    pid = owner(listening_sockets(place.port) or ())  # by TCP: whoever has only the UDP port is no picker
    transport = "" if kind is socket.SOCK_STREAM else " (UDP)"
    return Occupant(f"{f'process {pid}' if pid else 'another process'} has {place}{transport}", pid)


def _busy(bind: Address) -> tuple[Address, socket.SocketKind] | None:
    http = picker_http(bind)
    places = [(bind, socket.SOCK_STREAM), (http, socket.SOCK_STREAM), (http, socket.SOCK_DGRAM)]
    remote = picker_http_remote(bind)
    places += [(remote, socket.SOCK_STREAM)] if remote is not None else []
    for place, kind in places:
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

"""The ports of the picker of `serve`: processes that have them, exposure to strangers, and sockets that keep them.

The proxies of this control plane must not ask the picker of another `lbctl serve`, which would choose among the
replicas of another fleet and count requests that it does not have. An `lbctl picker` is taken for one of this fleet.

The ports of a picker that has ended would be free for every user of the machine, who would get the prompts of the next
questions. Therefore `serve` binds them while its picker is restarted, and the process of the picker shares them: TCP
ports with `SO_REUSEPORT`, which Linux allows to processes of one user alone, and the UDP port as a socket that it
inherits. The TCP sockets here do not listen: while there is no picker, questions are refused at once, and ends of
requests wait in the UDP socket.
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
from lbctl.base.errors import reason_of
from lbctl.ir.address import Address
from lbctl.ir.proxies import ServerTls, picker_http, picker_http_remote
from lbctl.picker.datagrams import bound

_PROGRAM = 3
"""The number of leading arguments of a command line that are searched for lbctl, as in `python -m lbctl`."""


class CannotKeepError(Exception):
    """A port cannot be bound. The message says which, and why."""


class PickerPorts:
    """The ports of a picker whose gRPC is at `bind`. Raises CannotKeepError."""

    def __init__(self, bind: Address) -> None:
        self.bind = bind
        http, remote = picker_http(bind), picker_http_remote(bind)
        self._sockets: list[socket.socket] = []
        place = http
        try:
            self.datagrams = bound(http)  # first: this port cannot be shared, so a second `serve` fails here
            self._sockets.append(self.datagrams)
            for place in dict.fromkeys((bind, http, *([remote] if remote is not None else []))):
                self._sockets.append(_kept(place))
        except OSError as error:
            self.close()
            raise CannotKeepError(f"the picker cannot listen on {place}: {reason_of(error)}") from None

    def close(self) -> None:
        """Give the ports back."""
        for item in self._sockets:
            item.close()


def _kept(place: Address) -> socket.socket:
    """Return a socket that has the port and does not listen. Raises OSError.

    `SO_REUSEADDR` lets it bind beside old connections of the port, and would let other users do so too. Linux forgets
    for a port that its sockets had this option when one of them listens.
    """
    kept = socket.socket(socket.AF_INET6 if ":" in place.host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind((place.host, place.port))
        kept.listen(1)
        kept.shutdown(socket.SHUT_RDWR)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError:
        kept.close()
        raise
    return kept


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
        f"the picker on {bind} {missing} would accept prompts from any client, so it does not start",
        path=("control", "picker", "bind"),
        hint="set certificate, key and client_ca in control.xds.tls, bind it to 127.0.0.1, or use --insecure",
    )

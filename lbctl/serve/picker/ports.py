"""The ports for `serve`'s picker: processes that are using them, and sockets that reserve them.

This control plane's proxies must not query another `lbctl serve`'s picker, which would choose among a different fleet's
replicas and count requests that do not belong to this fleet. An `lbctl picker` is treated as this fleet's picker.

When a picker exits, its ports would become free, and another user on the machine could bind them and receive prompts.
`serve` therefore keeps them bound while its picker restarts, and shares them with the picker process. TCP ports are
shared with `SO_REUSEPORT`, which Linux allows only among one user's processes. The UDP port is an inherited socket. The
TCP sockets here do not listen: without a picker, pick requests are refused immediately, and reports of ended requests
wait in the UDP socket.
"""

from __future__ import annotations

import errno
import socket
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from lbctl.apply.listening_sockets import bind_error, listening_sockets, owner
from lbctl.base.errors import reason_of
from lbctl.ir.address import Address
from lbctl.ir.proxies import picker_http, picker_http_remote
from lbctl.picker.datagrams import bound

_PROGRAM = 3
"""Number of leading command-line arguments searched for lbctl, as in `python -m lbctl`."""


class CannotKeepError(Exception):
    """A port cannot be bound. The message names the port and the reason."""


class PickerPorts:
    """The ports for a picker whose gRPC server uses `bind`. Raises CannotKeepError."""

    def __init__(self, bind: Address) -> None:
        self.bind = bind
        http, remote = picker_http(bind), picker_http_remote(bind)
        self._sockets: list[socket.socket] = []
        place = http
        try:
            self.datagrams = bound(http)  # first, because this port cannot be shared, so a second `serve` fails here
            self._sockets.append(self.datagrams)
            for place in dict.fromkeys((bind, http, *([remote] if remote is not None else []))):
                self._sockets.append(_kept(place))
        except OSError as error:
            self.close()
            raise CannotKeepError(f"the picker cannot listen on {place}: {reason_of(error)}") from None

    def close(self) -> None:
        """Release the ports."""
        for item in self._sockets:
            item.close()


def _kept(place: Address) -> socket.socket:
    """Return a socket that is bound to the port but is not listening. Raises OSError.

    With `SO_REUSEADDR`, it could bind despite old connections on the port, but so could other users. Linux resets the
    option for a port when one of its sockets starts to listen.
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
    """A process that is using one of a picker's ports."""

    text: str
    """The process and its port as text for the end of a sentence."""
    pid: int | None
    """Process ID; None if this user cannot see it."""

    @property
    def is_gone(self) -> bool:
        """Return whether the process has exited."""
        return self.pid is not None and not Path(f"/proc/{self.pid}").exists()

    @property
    def is_picker_alone(self) -> bool:
        """Return whether it is an `lbctl picker` started by an operator for this machine's proxies."""
        with suppress(OSError):
            names = [Path(item).name for item in Path(f"/proc/{self.pid}/cmdline").read_text().split("\0")]
            return ("lbctl", "picker") in pairwise(names[: _PROGRAM + 1])
        return False


def is_free(bind: Address) -> bool:
    """Return whether all ports for a picker at `bind` are free."""
    return _busy(bind) is None


def occupant(bind: Address) -> Occupant | None:
    """Return the process that is using a port needed by a picker at `bind`; None if all are free."""
    found = _busy(bind)
    if found is None:
        return None
    place, kind = found
    pid = owner(listening_sockets(place.port) or ())  # by TCP, because a process with only the UDP port is not a picker
    transport = "" if kind is socket.SOCK_STREAM else " (UDP)"
    return Occupant(f"{f'process {pid}' if pid else 'another process'} uses {place}{transport}", pid)


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

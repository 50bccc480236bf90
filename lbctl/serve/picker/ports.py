"""The ports of `serve`'s picker: processes that use them, and sockets that reserve them.

This control plane's proxies must not use the picker of another `lbctl serve`, which would choose among another fleet's
replicas and count requests that this fleet does not have. An `lbctl picker` counts as a picker of this fleet.

When a picker ends, its ports would be free, and another user of the machine could bind them and receive prompts.
Therefore, `serve` binds them while its picker restarts, and the picker process shares them. TCP ports are shared with
`SO_REUSEPORT`, which Linux allows only for processes of one user. The UDP port is an inherited socket. The TCP sockets
here do not listen: without a picker, pick requests are refused immediately, and reports of ended requests wait in the
UDP socket.
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
"""Number of leading command-line arguments to search for lbctl, as in `python -m lbctl`."""


class CannotKeepError(Exception):
    """A port cannot be bound. The message names the port and the reason."""


class PickerPorts:
    """The ports of a picker whose gRPC server uses `bind`. Raises CannotKeepError."""

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
        """Release the ports."""
        for item in self._sockets:
            item.close()


def _kept(place: Address) -> socket.socket:
    """Return a socket that is bound to the port but does not listen. Raises OSError.

    With `SO_REUSEADDR`, it can bind despite old connections on the port, but other users could do so too. Linux resets
    the option for a port when one of its sockets starts to listen.
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
    """A process that uses a port of a picker."""

    text: str
    """The process and its port as text, for the end of a sentence."""
    pid: int | None
    """The process; None if this user cannot see it."""

    @property
    def is_gone(self) -> bool:
        """Return whether the process has ended."""
        return self.pid is not None and not Path(f"/proc/{self.pid}").exists()

    @property
    def is_picker_alone(self) -> bool:
        """Return whether it is an `lbctl picker` that an operator has started for this machine's proxies."""
        with suppress(OSError):
            names = [Path(item).name for item in Path(f"/proc/{self.pid}/cmdline").read_text().split("\0")]
            return ("lbctl", "picker") in pairwise(names[: _PROGRAM + 1])
        return False


def is_free(bind: Address) -> bool:
    """Return whether all ports of a picker at `bind` are free."""
    return _busy(bind) is None


def occupant(bind: Address) -> Occupant | None:
    """Return the process that uses a port of a picker at `bind`; None if all are free."""
    found = _busy(bind)
    if found is None:
        return None
    place, kind = found
    pid = owner(listening_sockets(place.port) or ())  # by TCP: a process with only the UDP port is not a picker
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

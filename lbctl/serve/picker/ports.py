"""The ports of the picker of `serve`, which are kept while its process is restarted.

The ports of a picker that has ended would be free for every user of the machine, who would get the prompts of the next
questions. So `serve` binds them, and the process of the picker shares them: TCP ports with `SO_REUSEPORT`, which Linux
allows to processes of one user alone, and the UDP port as a socket that it inherits. The TCP sockets here do not
listen: while there is no picker, questions are refused at once, and ends of requests wait in the UDP socket.
"""

from __future__ import annotations

import socket

from lbctl.base.errors import reason_of
from lbctl.ir.address import Address
from lbctl.ir.proxies import picker_http, picker_http_remote
from lbctl.picker.datagrams import bound


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

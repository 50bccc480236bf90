"""Receives datagrams: in each turn of the event loop all that have come.

An endpoint of asyncio reads one datagram in a turn, and a turn answers as many connections as have asked something. So
under load the ends of requests came faster than they were read, and the system dropped three of four.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from lbctl.ir.address import Address

_BUFFER = 4 << 20
"""Bytes of datagrams that may wait, where the system allows so many."""
_MAX_BATCH = 1_000
"""Datagrams after which the event loop goes on with its other work."""
_MAX_DATAGRAM_BYTES = 64 << 10
"""The longest datagram, in bytes."""


def bound(address: Address) -> socket.socket:
    """Return a socket that receives the datagrams of an address. Raises OSError."""
    receiving = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        receiving.setblocking(False)
        receiving.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        receiving.bind((address.host, address.port))
    except OSError:
        receiving.close()
        raise
    return receiving


class DatagramReceiver:
    """Gives the content of the datagrams of a socket (`bound`) to `take`. Needs a running event loop."""

    def __init__(self, receiving: socket.socket, take: Callable[[bytes], None]) -> None:
        self._take = take
        self._socket = receiving
        self.port: int = self._socket.getsockname()[1]
        """The port that it listens on."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._read)

    def close(self) -> None:
        """Receive nothing more."""
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _read(self) -> None:
        for _ in range(_MAX_BATCH):
            try:
                datagram = self._socket.recv(_MAX_DATAGRAM_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            self._take(datagram)

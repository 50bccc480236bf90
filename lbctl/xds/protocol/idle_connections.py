"""Closes the connections of a gRPC server that have no call, where these are too many: the oldest first.

gRPC can refuse new connections at a limit, which would keep out the clients that need one. It does not name its
connections either, so the sockets of the process are looked at.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from lbctl.xds.protocol.connection import peer_of_socket

MAX_IDLE = 256
_DESCRIPTORS = 8
"""Idle connections have one of so many parts of the descriptors that the process may open."""
_INTERVAL = 1.0
"""Seconds between two looks."""
_DIRECTORY = Path("/proc/self/fd")


class IdleConnections:
    """The connections to one port. `busy` returns the clients, as host and port, that have calls."""

    def __init__(self, port: int, busy: Callable[[], Collection[tuple[str, int]]], most: int | None = None) -> None:
        """`most`: by default `MAX_IDLE`, or an eighth of the descriptors where these are fewer."""
        self._port = port
        self._busy = busy
        self._max_idle = most or _max_idle()
        self._seen: dict[tuple[str, int], None] = {}
        """The clients that were connected at the last look, the oldest first."""

    async def run(self) -> None:
        """Look again and again."""
        while True:
            await asyncio.sleep(_INTERVAL)
            descriptors = len(_descriptors())
            if descriptors > self._max_idle and descriptors - len(self._busy()) > self._max_idle:
                await self.look()

    async def look(self) -> None:
        """Close what is too much now."""
        found = await asyncio.to_thread(_clients, self._port)
        self._seen = {client: None for client in self._seen if client in found} | dict.fromkeys(found)
        busy = self._busy()
        idle = [client for client in self._seen if client not in busy]
        surplus = idle[: max(0, len(idle) - self._max_idle)]
        if surplus:
            await asyncio.to_thread(_close, {found[client]: client for client in surplus})


def _clients(port: int) -> dict[tuple[str, int], int]:
    """Return client → the descriptor of its connection to a port of this process."""
    found: dict[tuple[str, int], int] = {}
    for descriptor in _descriptors():
        with suppress(OSError):
            connection = socket.socket(fileno=descriptor)
            try:
                client = peer_of_socket(connection)
                if client is not None and connection.getsockname()[1] == port:
                    found[client] = descriptor
            finally:
                connection.detach()
    return found


def _descriptors() -> list[int]:
    """Return the descriptors of this process, which are more or less in the order in which they were opened."""
    return sorted(int(entry.name) for entry in _DIRECTORY.iterdir())


def _close(surplus: dict[int, tuple[str, int]]) -> None:
    """Shut down these connections, unless their descriptors have others by now."""
    for descriptor, client in surplus.items():
        with suppress(OSError):
            connection = socket.socket(fileno=descriptor)
            try:
                if peer_of_socket(connection) == client:
                    connection.shutdown(socket.SHUT_RDWR)
            finally:
                connection.detach()


def _max_idle() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_IDLE if soft == resource.RLIM_INFINITY else min(MAX_IDLE, soft // _DESCRIPTORS)

"""Closes the connections of a gRPC server that have no call, where these are too many: the oldest first.

gRPC can refuse new connections at a limit, which would keep out the clients that need one. It does not name its
connections either, so the sockets of the process are looked at.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Collection

from lbctl.xds.protocol.connection import Client, connections_of, descriptors, shut_down

MAX_IDLE = 256
_DESCRIPTORS = 8
"""Idle connections have one of so many parts of the descriptors that the process may open."""
_INTERVAL = 1.0
"""Seconds between two looks."""


class IdleConnections:
    """The connections to one port. `busy` returns the clients, as host and port, that have calls."""

    def __init__(self, port: int, busy: Callable[[], Collection[Client]], most: int | None = None) -> None:
        """`most`: by default `MAX_IDLE`, or an eighth of the descriptors where these are fewer."""
        self._port = port
        self._busy = busy
        self._max_idle = most or _max_idle()
        self._seen: dict[Client, None] = {}
        """The clients that were connected at the last look, the oldest first."""

    async def run(self) -> None:
        """Look again and again."""
        await asyncio.to_thread(connections_of, self._port)  # what a thread needs is loaded while descriptors are left
        while True:
            await asyncio.sleep(_INTERVAL)
            opened = len(descriptors())
            if opened > self._max_idle and opened - len(self._busy()) > self._max_idle:
                await self.look()

    async def look(self) -> None:
        """Close what is too much now."""
        found = await asyncio.to_thread(connections_of, self._port)
        self._seen = {client: None for client in self._seen if client in found} | dict.fromkeys(found)
        busy = self._busy()
        idle = [client for client in self._seen if client not in busy]
        surplus = idle[: max(0, len(idle) - self._max_idle)]
        if surplus:
            await asyncio.to_thread(shut_down, {client: found[client] for client in surplus})


def _max_idle() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_IDLE if soft == resource.RLIM_INFINITY else min(MAX_IDLE, soft // _DESCRIPTORS)

"""Closes excess connections to a gRPC server that have no calls, oldest first.

gRPC can reject new connections at a limit, but this would lock out clients that need one. gRPC does not expose its
connections, so the sockets of the process are examined. A new connection does not have a call yet. A connection without
a call is counted only after `GRACE`, so that a thousand Envoys can connect at the same time.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Callable, Collection

from lbctl.xds.protocol.connection import Client, connections_of, shut_down

MAX_IDLE = 256
MAX_NEW = 2_048
"""Maximum number of connections without a call, including new ones."""
GRACE = 10.0
"""Seconds that a new connection may remain without a call, which allows for its TLS handshake and for the event loop to
handle the call."""
_DESCRIPTORS, _DESCRIPTORS_OF_NEW = 8, 4
"""Divisors of the process's descriptor limit: for the maximum number of idle connections, and for idle and new
connections together."""
_INTERVAL = 1.0
"""Seconds between counts of the descriptors."""
_LOOK_INTERVAL = 30.0
"""Seconds between scans of all sockets, if their number has not grown. Scanning many sockets is slow."""


class IdleConnections:
    """The connections to one port. `busy` returns the host and port of each client that has calls."""

    def __init__(
        self,
        port: int,
        busy: Callable[[], Collection[Client]],
        most: int | None = None,
        new: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without closing any connection.

        `most` and `new` default to `MAX_IDLE` and `MAX_NEW`, or to fractions of the descriptor limit if those are
        lower.
        """
        self._port = port
        self._busy = busy
        self._max_idle = most or _part(MAX_IDLE, _DESCRIPTORS)
        self._max_new = new or _part(MAX_NEW, _DESCRIPTORS_OF_NEW)
        self._clock = clock
        self._seen: dict[Client, float] = {}
        """Maps each client connected at the last scan to the time when it was first seen, oldest first."""
        self._others = 0
        """Number of descriptors at the last scan that were not connections to the port."""
        self._looked_at = float("-inf")

    async def run(self) -> None:
        """Scan repeatedly until cancelled."""
        await asyncio.to_thread(connections_of, self._port)  # load what a thread needs while descriptors are available
        while True:
            await asyncio.sleep(_INTERVAL)
            if self.is_due():
                await self.look()

    def is_due(self) -> bool:
        """Return whether there may be too many idle connections."""
        spare = _opened() - len(self._busy())
        is_late = self._clock() - self._looked_at >= _LOOK_INTERVAL
        return spare > self._max_idle and (is_late or spare - self._others > self._max_idle)

    async def look(self) -> None:
        """Close the excess connections."""
        found = await asyncio.to_thread(connections_of, self._port)
        self._others, self._looked_at = _opened() - len(found), self._clock()
        self._seen = {client: since for client, since in self._seen.items() if client in found}
        for client in found:
            self._seen.setdefault(client, self._looked_at)
        busy = self._busy()
        idle = [client for client in self._seen if client not in busy]
        settled = sum(self._looked_at - self._seen[client] >= GRACE for client in idle)
        surplus = idle[: max(0, settled - self._max_idle, len(idle) - self._max_new)]
        if surplus:
            await asyncio.to_thread(shut_down, {client: found[client] for client in surplus})


def _opened() -> int:
    """Return the number of open descriptors; if no descriptor is free to list them, return the limit."""
    try:
        return sum(1 for _ in os.scandir("/proc/self/fd"))
    except OSError:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _part(most: int, parts: int) -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else min(most, soft // parts)

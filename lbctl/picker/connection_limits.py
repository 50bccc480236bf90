"""Limits on the number of HTTP connections to a listener, and on the bytes of incomplete queries that they buffer.

When a limit is reached, the picker closes the connection that has gone longest without a response. Clients that merely
keep connections open, or never complete their queries, therefore cannot lock out proxies: a proxy gets its response as
soon as it connects. Connections whose request is waiting in a queue are neither closed nor counted, because the queue
limits their number.
"""

from __future__ import annotations

import resource
from typing import Protocol

from lbctl.xds.protocol.connection import Client

MAX_CONNECTIONS = 4_096
MAX_HELD_BYTES = 16 << 20
"""Maximum total size of incomplete queries across all of a listener's connections, in bytes."""
_DESCRIPTORS = 4
"""The process's file descriptor limit is divided by this number to get the limit for one listener's connections."""


class Closable(Protocol):
    """A connection."""

    @property
    def client(self) -> Client | None:
        """The client's host and port; None once the connection is closed."""

    def close(self) -> None:
        """Close the connection."""


class ConnectionLimits:
    """One listener's connections."""

    def __init__(self, connections: int | None = None, held: int = MAX_HELD_BYTES) -> None:
        """`connections` defaults to `MAX_CONNECTIONS`, or to a quarter of the file descriptors if that is less."""
        self._max_connections = connections or _max_connections()
        self._max_held = held
        self._held: dict[Closable, int] = {}
        """Maps each connection to the number of bytes that it is buffering. The connection that has gone longest
        without a response comes first."""
        self._held_bytes = 0
        self._waiting: set[Closable] = set()
        """Connections whose request is waiting in a queue."""

    def clients(self) -> set[Client]:
        """Return the clients whose connections are being served, with their TLS handshakes complete."""
        served = (*self._held, *self._waiting)
        return {client for item in served if (client := item.client) is not None}

    def enter(self, new: Closable) -> None:
        """Add a connection."""
        if len(self._held) >= self._max_connections:
            self._close_oldest()
        self._held[new] = 0

    def note_held(self, connection: Closable, size: int) -> None:
        """Record how many bytes the connection is buffering."""
        if (before := self._held.get(connection)) is None or before == size:
            return
        self._held[connection] = size
        self._held_bytes += size - before
        while self._held_bytes > self._max_held:
            self._close_oldest_holder()

    def note_answer(self, connection: Closable) -> None:
        """Record that the connection has received a response."""
        if (size := self._held.pop(connection, None)) is not None:
            self._held[connection] = size

    def note_waiting(self, connection: Closable, *, is_waiting: bool) -> None:
        """Record whether one of the connection's requests is waiting in a queue."""
        if is_waiting:
            self._waiting.add(connection)
            self._held_bytes -= self._held.pop(connection, 0)
        elif connection in self._waiting:
            self._waiting.discard(connection)
            self._held[connection] = 0

    def leave(self, closed: Closable) -> None:
        """Remove a connection."""
        self._waiting.discard(closed)
        self._held_bytes -= self._held.pop(closed, 0)

    def _close_oldest(self) -> None:
        self._close(next(iter(self._held)))

    def _close_oldest_holder(self) -> None:
        self._close(next(connection for connection, size in self._held.items() if size))

    def _close(self, connection: Closable) -> None:
        self.leave(connection)
        connection.close()


def _max_connections() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, soft // _DESCRIPTORS)

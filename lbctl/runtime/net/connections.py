"""Limits the connections to an HTTP server: their number, their idle time, and the memory used by incomplete requests.

Every open connection counts towards the limit. When the limit is reached, lbctl closes the idle connection whose last
response is the oldest. Clients that merely keep connections open therefore cannot lock out others. A connection whose
request body has not arrived yet is still considered idle. A stream is always considered busy; the number of streams is
limited by the API's `streams` module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from aiohttp import web

from lbctl.base.hosts import normal_host

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
MAX_CONNECTIONS = 256
"""This is far above the number of connections opened by scrapers, dashboards and commands, and far below a process's
1,024 descriptors."""
MAX_HELD_BYTES = 16 << 20
"""Maximum total size of incomplete requests on all connections, in bytes."""
_MAX_SENT_BYTES = 512 << 10
"""Number of bytes that a client may send while it waits for a response: the body of its request, or further requests.

If a body is not consumed, reading stops at 384 KiB: aiohttp stops reading once it has 128 KiB, and a single read
returns up to 256 KiB.
"""
_READ_TIMEOUT = 15.0
"""Seconds to wait for a client to read pending data."""
FIRST_REQUEST = 10.0
"""Maximum time from the start of a connection to the end of its first request's headers, in seconds."""
IDLE = 75.0
"""Maximum time between requests in seconds; longer than most scrape intervals, so that scrapers keep their
connections."""


class ConnectionLimit:
    """One server's connections. `inner` creates the HTTP protocol for a connection."""

    def __init__(
        self, inner: Callable[[], asyncio.Protocol], most: int = MAX_CONNECTIONS, patience: float = FIRST_REQUEST
    ) -> None:
        self._inner = inner
        self._most = most
        self._patience = patience
        self._open: dict[LimitedConnection, int] = {}
        """Maps each connection to the number of bytes of its next request. The connection that has gone longest without
        a response comes first."""
        self._held_bytes = 0

    def protocol(self) -> LimitedConnection:
        """Create the protocol for a new connection."""
        return LimitedConnection(self, self._inner(), self._patience)

    def clients(self) -> set[tuple[str, int]]:
        """Return the host and port of each client whose connection is being served, after its TLS handshake."""
        return {client for item in self._open if (client := item.client) is not None}

    def enter(self, new: LimitedConnection) -> bool:
        """Count the connection. Return False if the limit has been reached and no other connection is idle."""
        if len(self._open) >= self._most:
            oldest = next((item for item in self._open if not item.busy), None)
            if oldest is None:
                return False
            self._close(oldest)
        self._open[new] = 0
        return True

    def note_held(self, connection: LimitedConnection, size: int) -> None:
        """Record how many bytes of its next request the connection has sent; 0 once the request is complete."""
        if connection not in self._open:
            return
        self._held_bytes += size - self._open[connection]
        self._open[connection] = size
        while self._held_bytes > MAX_HELD_BYTES:
            self._close(next(item for item, held in self._open.items() if held))

    def note_answer(self, connection: LimitedConnection) -> None:
        """Record that the connection has been sent a response."""
        if (size := self._open.pop(connection, None)) is not None:
            self._open[connection] = size

    def leave(self, closed: LimitedConnection) -> None:
        """Stop counting the connection."""
        self._held_bytes -= self._open.pop(closed, 0)

    def _close(self, connection: LimitedConnection) -> None:
        self.leave(connection)
        connection.abort()


class LimitedConnection(asyncio.Protocol):
    """Passes everything to `inner` once the connection has been admitted.

    `busy`: whether a request on the connection is being answered.
    """

    def __init__(self, connections: ConnectionLimit, inner: asyncio.Protocol, patience: float) -> None:
        self.busy = False
        self._connections = connections
        self._inner = inner
        self._patience = patience
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._admitted = False
        self._when_lost: Callable[[], None] | None = None
        self._received = 0
        """Bytes received since the last request began or was answered."""
        self._drops = False
        """Whether further data from the client is dropped because it is the rest of an unwanted body."""
        self.client: tuple[str, int] | None = None
        """The client's host and port; None for a Unix socket."""
        self._reader: asyncio.TimerHandle | None = None
        """Timer that closes the connection of a client that is not reading."""

    def begin(self) -> None:
        """Record that a request has arrived with all its headers."""
        self.busy, self._received, self._drops = True, 0, False
        self._connections.note_held(self, 0)
        self._stop_timer()

    def end(self, *, body_is_left: bool = False) -> None:
        """Record that the request has been answered.

        If `body_is_left` is true, the rest of the body is read and dropped for a short time before the connection is
        closed.
        """
        self.busy, self._received, self._drops = False, 0, body_is_left
        self._when_lost = None
        self._connections.note_answer(self)

    @contextmanager
    def awaiting_body(self) -> Iterator[None]:
        """Treat the connection as idle while it waits for the request's body."""
        self.busy = False
        try:
            yield
        finally:
            self.busy = True

    def when_lost(self, callback: Callable[[], None]) -> None:
        """Call `callback` if the connection is lost before the request has been answered."""
        self._when_lost = callback

    def abort(self) -> None:
        """Close the connection immediately."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection, or close it if too many are open."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.client = (normal_host(peer[0]), peer[1]) if isinstance(peer, tuple) else None
        self._admitted = self._connections.enter(self)
        if not self._admitted:
            transport.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(self._patience, self.abort)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Pass the bytes to the HTTP protocol."""
        if not self._admitted:
            return
        if self._drops:
            self._inner.data_received(data)
            return
        self._received += len(data)
        if self.busy and self._received > _MAX_SENT_BYTES:
            self.abort()
            return
        if not self.busy:
            self._connections.note_held(self, self._received)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass the end of the client's data to the HTTP protocol."""
        return self._inner.eof_received() if self._admitted else None

    def pause_writing(self) -> None:
        """Notify the HTTP protocol that the client is reading too slowly."""
        if self._admitted:
            self._reader = asyncio.get_running_loop().call_later(_READ_TIMEOUT, self.abort)
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Notify the HTTP protocol that the client has resumed reading."""
        self._stop_reader()
        if self._admitted:
            self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """Stop counting the connection, and run the `when_lost` callback."""
        self._stop_timer()
        self._stop_reader()
        if self._when_lost is not None:
            self._when_lost()
        if self._admitted:
            self._connections.leave(self)
            self._inner.connection_lost(error)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_reader(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None


def connection_of(request: web.Request) -> LimitedConnection | None:
    """Return a request's connection, or None if it has already been closed."""
    connection = request.transport.get_protocol() if request.transport else None
    return connection if isinstance(connection, LimitedConnection) else None


@web.middleware
async def counted(request: web.Request, handler: Handler) -> web.StreamResponse:
    """An aiohttp middleware that marks the connection as busy until the response is complete."""
    connection = connection_of(request)
    if connection is None:
        return await handler(request)
    connection.begin()
    try:
        return await handler(request)
    finally:
        connection.end(body_is_left=not request.content.is_eof())

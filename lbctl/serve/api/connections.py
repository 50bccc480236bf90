"""Limits how many connections the API has and how long one may be silent.

Every open connection counts. Where one too many comes, the oldest that is idle is closed for it, so that clients that
only hold connections keep nobody out. A stream of events is never idle; `events` limits their number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

MOST = 256
"""Far above what scrapers, dashboards and commands have open, far below the 1,024 descriptors of a process."""
FIRST_REQUEST = 10.0
"""Seconds from the connection to the end of its first request's headers."""
IDLE = 75.0
"""Seconds between two requests: above the interval of most scrapers, which then keep theirs."""


class ConnectionLimit:
    """The connections of one server. `inner` makes the HTTP protocol of a connection."""

    def __init__(
        self, inner: Callable[[], asyncio.Protocol], most: int = MOST, patience: float = FIRST_REQUEST
    ) -> None:
        self._inner = inner
        self._most = most
        self._patience = patience
        self._open: dict[LimitedConnection, None] = {}
        """The oldest first."""

    def protocol(self) -> LimitedConnection:
        """Make the protocol of a new connection."""
        return LimitedConnection(self, self._inner(), self._patience)

    def enter(self, new: LimitedConnection) -> bool:
        """Count the connection; False where the limit is reached and no other connection is idle."""
        if len(self._open) >= self._most:
            oldest = next((item for item in self._open if not item.busy), None)
            if oldest is None:
                return False
            del self._open[oldest]
            oldest.abort()
        self._open[new] = None
        return True

    def leave(self, closed: LimitedConnection) -> None:
        """Count the connection no longer."""
        self._open.pop(closed, None)


class LimitedConnection(asyncio.Protocol):
    """Passes everything to `inner` once it is admitted. `busy` says that a request of it is being answered."""

    def __init__(self, connections: ConnectionLimit, inner: asyncio.Protocol, patience: float) -> None:
        self.busy = False
        self._connections = connections
        self._inner = inner
        self._patience = patience
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._admitted = False
        self._when_lost: Callable[[], None] | None = None

    def begin(self) -> None:
        """Note that a request has come, with all its headers."""
        self.busy = True
        self._stop_timer()

    def end(self) -> None:
        """Note that the request has been answered."""
        self.busy = False
        self._when_lost = None

    def when_lost(self, callback: Callable[[], None]) -> None:
        """Call `callback` if the connection is lost before the request has been answered."""
        self._when_lost = callback

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection, or close it where there are too many."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._admitted = self._connections.enter(self)
        if not self._admitted:
            transport.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(self._patience, self.abort)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Pass the bytes to the HTTP protocol."""
        if self._admitted:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass the end of the client's bytes to the HTTP protocol."""
        return self._inner.eof_received() if self._admitted else None

    def pause_writing(self) -> None:
        """Tell the HTTP protocol that the client reads too slowly."""
        if self._admitted:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Tell the HTTP protocol that the client reads again."""
        if self._admitted:
            self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """Free the place of the connection, and run the callback of `when_lost`."""
        self._stop_timer()
        if self._when_lost is not None:
            self._when_lost()
        if self._admitted:
            self._connections.leave(self)
            self._inner.connection_lost(error)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

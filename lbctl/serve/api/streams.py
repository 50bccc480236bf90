"""Endpoints that respond with a stream: events, tables for pickers, and dashboard frames.

If a client stops reading, its connection is aborted: an orderly close would keep it open until the client has read all
written data.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Protocol

from aiohttp import web

from lbctl.runtime.net.connections import connection_of
from lbctl.serve.api.authorization import ACTOR, joins
from lbctl.serve.api.dashboard.http import takes_gzip
from lbctl.serve.api.dashboard.service import MAX_STREAMS
from lbctl.serve.api.events import MAX_CLIENTS, EventSubscription, TooManyClientsError
from lbctl.serve.api.handlers import handler
from lbctl.serve.api.interface import SERVING
from lbctl.serve.api.responses import HEADERS, RefusedRequest
from lbctl.serve.picker.feed import TableEvents
from lbctl.serve.picker.peers import Peer, is_valid, remote_peer

HEARTBEAT = 15.0
"""Seconds without an event before a stream sends a comment, so that intermediate proxies keep it open."""
MAX_PICKERS = 40
"""Maximum number of pickers that get tables from this process; the one that `serve` has started is always accepted."""
RESERVED = 32
"""Number of streams of each kind that are reserved for clients with a token."""
_WRITE_TIMEOUT = 15.0
"""Seconds that a client may take to read the data sent to it."""
ANONYMOUS_STREAMS: web.AppKey[Counter[str]] = web.AppKey("anonymous_streams")
"""Application key for the open streams of clients without a token, by path."""


class StreamParts(Protocol):
    """The parts of a stream, in order."""

    async def next(self) -> bytes | None:
        """Wait for the next part; None at the end."""

    def end(self) -> None:
        """End the stream because its client has disconnected."""


@handler
async def events(request: web.Request) -> web.StreamResponse:
    """Stream events until the client or the process ends the stream."""
    log, last = request.app[SERVING].events, request.headers.get("last-event-id")
    try:
        with _share(request, MAX_CLIENTS), log.subscribe(last) as subscription:
            return await stream(request, _WithHeartbeat(subscription), HEADERS)
    except TooManyClientsError:
        raise RefusedRequest(503, f"the limit of {MAX_CLIENTS} event streams has been reached") from None


@handler
async def pick_tables(request: web.Request) -> web.StreamResponse:
    """Stream the tables of replicas to a picker."""
    feed, peer = request.app[SERVING].pick_feed, _peer(request)
    if feed.subscribers >= MAX_PICKERS:
        raise RefusedRequest(503, f"the limit of {MAX_PICKERS} pickers has been reached")
    trusted = joins(request)
    if trusted and peer is not None:
        feed.note_alone(peer)
    with _share(request, MAX_PICKERS), feed.subscribe(peer, trusted=trusted) as subscription:
        return await stream(request, TableEvents(subscription, HEARTBEAT), HEADERS)


@handler
async def live(request: web.Request) -> web.StreamResponse:
    """Stream dashboard frames until the client or the process ends the stream."""
    packed = takes_gzip(request)
    try:
        with _share(request, MAX_STREAMS), request.app[SERVING].dashboard.subscribe(packed=packed) as frames:
            return await stream(request, frames, HEADERS | ({"content-encoding": "gzip"} if packed else {}))
    except TooManyClientsError:
        raise RefusedRequest(503, f"the limit of {MAX_STREAMS} dashboards has been reached") from None


@contextmanager
def _share(request: web.Request, most: int) -> Iterator[None]:
    """Count an open stream if its client has no token; `most` is the maximum number of all streams of its kind.

    Raises RefusedRequest if clients without a token already have all but `RESERVED` of them.
    """
    if ACTOR.get():
        yield
        return
    anonymous = request.app[ANONYMOUS_STREAMS]
    if anonymous[request.path] >= most - RESERVED:
        limit = most - RESERVED
        raise RefusedRequest(503, f"the limit of {limit} such streams for clients without a token has been reached")
    anonymous[request.path] += 1
    try:
        yield
    finally:
        anonymous[request.path] -= 1


async def stream(request: web.Request, parts: StreamParts, headers: Mapping[str, str]) -> web.StreamResponse:
    """Send the parts as they arrive. Once the stream has begun, no other response is possible."""
    connection = connection_of(request)
    if connection is not None:
        connection.when_lost(parts.end)
    response = web.StreamResponse(headers={**headers, "content-type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    with suppress(ConnectionError):
        while (part := await parts.next()) is not None:
            try:
                async with asyncio.timeout(_WRITE_TIMEOUT):
                    await response.write(part)
            except TimeoutError:
                if request.transport is not None:
                    request.transport.abort()
                break
    return response


class _WithHeartbeat:
    """The events of a subscription, with a comment after every `HEARTBEAT` seconds without an event."""

    def __init__(self, subscription: EventSubscription) -> None:
        self.end = subscription.end
        self._subscription = subscription

    async def next(self) -> bytes | None:
        try:
            async with asyncio.timeout(HEARTBEAT):
                return await self._subscription.next()
        except TimeoutError:
            return b": heartbeat\n\n"


def _peer(request: web.Request) -> Peer | None:
    """Return the picker that requests tables; None if other pickers cannot reach it.

    Raises RefusedRequest.
    """
    own, address = request.query.get("id", ""), request.query.get("address", "")
    if not own and not address:
        return None
    if not is_valid(own, address):
        raise RefusedRequest(400, "id must be 1 to 64 letters and digits, and address must be IP:PORT")
    return remote_peer(own, address, request.remote or "")

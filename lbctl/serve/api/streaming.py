"""Sends a stream of server-sent events to one client, for as long as it reads.

The connection of one that does not read is aborted: closed in order it would stay, with what was written last, until
the client reads that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from aiohttp import web

from lbctl.serve.api.connections import connection_of

_WRITE_TIMEOUT = 15.0
"""Seconds that a client may take to read what is sent to it."""


class StreamParts(Protocol):
    """What is sent, part by part."""

    async def next(self) -> bytes | None:
        """Wait for the next part; None at the end."""

    def end(self) -> None:
        """End the stream, since its client has gone."""


async def stream(request: web.Request, parts: StreamParts, headers: Mapping[str, str]) -> web.StreamResponse:
    """Send the parts as they come. Once it has begun, nothing else can be answered."""
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

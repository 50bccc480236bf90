"""A small HTTP/1.1 server in place of a model server: it waits as long as a short answer takes and names itself.

It answers any request that a proxy forwards, on persistent connections. It validates nothing and is no example of a
server.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator

SERVICE_TIME = 0.02
"""Seconds for one response, the same on every replica, so that replicas differ only in their weight."""
_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)


@contextlib.asynccontextmanager
async def serving(name: str, bound: socket.socket) -> AsyncIterator[None]:
    """Serve on `bound`, which is closed at the end, with `name` in the header x-replica."""
    conversations: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_conversation(name, reader, writer))
        conversations.add(task)
        task.add_done_callback(conversations.discard)

    server = await asyncio.start_server(connected, sock=bound)
    try:
        yield
    finally:
        server.close()
        ending = list(conversations)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)


async def _conversation(name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    body = f'{{"replica": "{name}"}}\n'
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-replica: {name}\r\ncontent-length: {len(body)}"
    with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.IncompleteReadError):  # the proxy hung up
        while True:
            request = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(request)
            await reader.readexactly(int(length[1]) if length else 0)
            await asyncio.sleep(SERVICE_TIME)
            writer.write(f"{head}\r\n\r\n{body}".encode())
            await writer.drain()

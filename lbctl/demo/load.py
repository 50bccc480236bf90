"""Sends concurrent requests to the proxy and counts which replica answered. No request is sent twice."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from lbctl.demo.fleet import HOST

_REQUEST = b"GET /v1/models HTTP/1.1\r\nhost: demo\r\n\r\n"
_NAME = re.compile(rb"\r\nx-replica: ([!-~]+)\r\n", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)


@dataclass(slots=True)
class LoadResult:
    """The counted responses."""

    by_replica: Counter[str] = field(default_factory=Counter)
    """Complete 200 responses."""
    failed: int = 0
    """All other requests."""


async def send_requests(port: int, count: int, at_once: int) -> LoadResult:
    """Send `count` requests on `at_once` connections, each of which waits for its response before the next."""
    answers = LoadResult()
    numbers = iter(range(count))
    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(_client(port, numbers, answers))
    return answers


async def _client(port: int, numbers: Iterator[int], answers: LoadResult) -> None:
    writer = None
    for _ in numbers:
        try:
            if writer is None:
                reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(_REQUEST)
            name = await _answer(reader)
        except (OSError, asyncio.IncompleteReadError):
            name, writer = "", None
        if name:
            answers.by_replica[name] += 1
        else:
            answers.failed += 1
    if writer is not None:
        writer.close()


async def _answer(reader: asyncio.StreamReader) -> str:
    """Return the replica's name; empty for a response that is not a replica's 200."""
    head = await reader.readuntil(b"\r\n\r\n")
    length, name = _LENGTH.search(head), _NAME.search(head)
    await reader.readexactly(int(length[1]) if length else 0)
    return name[1].decode() if name and head.startswith(b"HTTP/1.1 200 ") else ""

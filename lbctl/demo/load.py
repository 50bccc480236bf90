"""Requests to the proxy, so many at once, and who answered them. Every answer counts; nothing is sent twice."""

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
class Answers:
    """`by_replica`: whole 200 answers; `failed`: all the rest."""

    by_replica: Counter[str] = field(default_factory=Counter)
    failed: int = 0


async def send(port: int, count: int, at_once: int) -> Answers:
    """`count` requests on `at_once` connections, each waiting for its answer before the next."""
    answers = Answers()
    numbers = iter(range(count))
    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(_client(port, numbers, answers))
    return answers


async def _client(port: int, numbers: Iterator[int], answers: Answers) -> None:
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
    """The replica's name; empty for an answer that is not a replica's 200."""
    head = await reader.readuntil(b"\r\n\r\n")
    length, name = _LENGTH.search(head), _NAME.search(head)
    await reader.readexactly(int(length[1]) if length else 0)
    return name[1].decode() if name and head.startswith(b"HTTP/1.1 200 ") else ""

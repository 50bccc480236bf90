"""A publisher of the KV-cache events of an engine, as `--kv-events-config` of vLLM starts it.

It uses ZMTP 3.0, the protocol of ZeroMQ (https://rfc.zeromq.org/spec/23), as a PUB socket without security. Each
message has three frames: a topic, a number, and a batch of events in MessagePack.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lbctl.demo.replica import HOST

_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_READY = b"\x05READY\x0bSocket-Type" + (3).to_bytes(4, "big") + b"PUB"
_MORE, _LONG, _COMMAND = 1, 2, 4
"""Flags of a frame."""


class Publisher:
    """A PUB socket on a free port. Every subscriber gets all topics."""

    def __init__(self) -> None:
        self.port = 0
        self._server: asyncio.Server | None = None
        self._subscribers: set[asyncio.StreamWriter] = set()
        self._numbers = itertools.count()

    @property
    def is_used(self) -> bool:
        """Whether there is a subscriber."""
        return bool(self._subscribers)

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, HOST)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Stop listening, and close all connections."""
        if self._server is not None:
            self._server.close()
        for each in self._subscribers:
            each.close()

    def publish(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Send a batch of events."""
        batch = msgspec.msgpack.encode([time.time(), events, 0])
        message = b"".join(
            (_frame(b"", _MORE), _frame(next(self._numbers).to_bytes(8, "big"), _MORE), _frame(batch, 0))
        )
        for each in self._subscribers:
            each.write(message)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send messages from the first subscription to the end of the connection."""
        writer.write(_GREETING + _frame(_READY, _COMMAND))
        try:
            await reader.readexactly(len(_GREETING))
            while True:
                flags, frame = await _read(reader)
                if not flags & _COMMAND and frame.startswith(b"\x01"):
                    self._subscribers.add(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self._subscribers.discard(writer)
            writer.close()


async def _read(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Return the flags and the content of a frame."""
    (flags,) = await reader.readexactly(1)
    size = int.from_bytes(await reader.readexactly(8 if flags & _LONG else 1), "big")
    return flags, await reader.readexactly(size)


def _frame(content: bytes, flags: int) -> bytes:
    if len(content) < 256:
        return bytes((flags, len(content))) + content
    return bytes((flags | _LONG,)) + len(content).to_bytes(8, "big") + content

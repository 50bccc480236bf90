"""The clients. Each request is sent on time on a separate connection, and its event stream is read to the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from lbctl.demo.replica import HOST

ANSWER_TIMEOUT = 10.0
"""Seconds for which a client waits for the next part of an answer. After that the request has failed."""


@dataclass(slots=True)
class Sent:
    """A request that was sent; times are seconds from the beginning of the run."""

    at: float
    first: float = 0.0
    last: float = 0.0
    failed: str = ""
    """Reason of the failure; empty if there was none."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A request that is due at `at` seconds."""

    at: float
    body: bytes
    session: str


class Clients:
    """The clients of one system."""

    def __init__(self, port: int, key: str, patience: float = ANSWER_TIMEOUT) -> None:
        self._port, self._key, self._patience = port, key, patience
        self.sent: list[Sent] = []

    async def run(self, plan: Sequence[Planned], began: float) -> None:
        """Send all requests. Return when each has ended or failed."""
        async with asyncio.TaskGroup() as group:
            for item in plan:
                await asyncio.sleep(max(0.0, began + item.at - time.monotonic()))
                group.create_task(self._one(item, began))

    async def _one(self, item: Planned, began: float) -> None:
        sent = Sent(time.monotonic() - began)
        self.sent.append(sent)
        try:
            await self._exchange(item, sent, began)
        except TimeoutError:
            sent.failed = f"nothing for {self._patience:.0f} s"
        except OSError as error:
            sent.failed = type(error).__name__

    async def _exchange(self, item: Planned, sent: Sent, began: float) -> None:
        reader, writer = await asyncio.open_connection(HOST, self._port)
        try:
            writer.write(
                f"POST /v1/chat/completions HTTP/1.1\r\nhost: models\r\nconnection: close\r\n"
                f"authorization: Bearer {self._key}\r\nx-session-id: {item.session}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(item.body)}\r\n\r\n".encode()
                + item.body
            )
            status = (await asyncio.wait_for(reader.readline(), self._patience)).split(b" ", 2)
            if status[1:2] != [b"200"]:
                sent.failed = status[1].decode() if len(status) > 1 else "no answer"
                return
            ending = b""
            while data := await asyncio.wait_for(reader.read(65536), self._patience):
                ending = ending[-64:] + data
                if not sent.first and b"data: " in ending:
                    sent.first = time.monotonic() - began
            sent.last = time.monotonic() - began
            if b"[DONE]" not in ending:
                sent.failed = "incomplete"
        finally:
            writer.close()

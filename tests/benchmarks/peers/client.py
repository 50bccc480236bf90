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
    answer: int = 0
    """Number of tokens of its answer."""


class Clients:
    """The clients of one system."""

    def __init__(self, port: int, key: str, patience: float = ANSWER_TIMEOUT) -> None:
        self._port, self._key, self._patience = port, key, patience
        self.sent: list[Sent] = []
        """In the order of the plan."""

    async def run(self, plan: Sequence[Planned], began: float) -> None:
        """Send all requests. Return when each has ended or failed."""
        async with asyncio.TaskGroup() as group:
            for item in plan:
                await asyncio.sleep(max(0.0, began + item.at - time.monotonic()))
                sent = Sent(time.monotonic() - began)
                self.sent.append(sent)
                group.create_task(self._send(item, sent, began))

    async def _send(self, item: Planned, sent: Sent, began: float) -> None:
        loop = asyncio.get_running_loop()
        answer = _Answer(sent, began, self._patience, loop)
        try:
            async with asyncio.timeout(self._patience):
                transport, _ = await loop.create_connection(lambda: answer, HOST, self._port)
        except TimeoutError:
            sent.failed = answer.silence
        except OSError as error:
            sent.failed = type(error).__name__
        else:
            head = (
                f"POST /v1/chat/completions HTTP/1.1\r\nhost: models\r\nconnection: close\r\n"
                f"authorization: Bearer {self._key}\r\nx-session-id: {item.session}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(item.body)}\r\n\r\n"
            )
            transport.write(head.encode() + item.body)
            await answer.done


class _Answer(asyncio.Protocol):
    """Reads an answer, and records its times and its failure."""

    def __init__(self, sent: Sent, began: float, patience: float, loop: asyncio.AbstractEventLoop) -> None:
        self.done = loop.create_future()
        self.silence = f"nothing for {patience:.0f} s"
        self._sent, self._began, self._patience, self._loop = sent, began, patience, loop
        self._ending = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._heard = self._loop.time()
        self._timer = self._loop.call_later(self._patience, self._check)

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        sent = self._sent
        if not self._ending and data.split(b" ", 2)[1:2] != [b"200"]:
            self._fail(data.split(b" ", 2)[1].decode(errors="replace") if b" " in data else "no HTTP")
            return
        self._ending = self._ending[-64:] + data
        if not sent.first and b"data: " in self._ending:
            sent.first = time.monotonic() - self._began

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        sent = self._sent
        sent.last = time.monotonic() - self._began
        if not sent.failed and error is not None:
            sent.failed = type(error).__name__
        elif not sent.failed and b"[DONE]" not in self._ending:
            sent.failed = "incomplete" if self._ending else "no answer"
        if not self.done.done():
            self.done.set_result(None)

    def _check(self) -> None:
        """Give up if no data has arrived for too long."""
        left = self._heard + self._patience - self._loop.time()
        if left <= 0:
            self._fail(self.silence)
        else:
            self._timer = self._loop.call_later(left, self._check)

    def _fail(self, reason: str) -> None:
        self._sent.failed = reason
        assert self._transport is not None
        self._transport.abort()

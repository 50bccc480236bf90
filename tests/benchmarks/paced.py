"""The engines of `lbctl.simulate` at the pace of the clock, behind HTTP: what real proxies are measured with.

A request is `GET …?q=PROMPT&n=ANSWER` (tokens). The head of the answer and its first byte go out with the first token,
the second and last byte with the last one. `/metrics` speaks vLLM's names. Requests are not pipelined.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from dataclasses import dataclass

from lbctl.simulate.engine import CostModel, Engine, SimulatedRequest
from tests.e2e.support.ports import HOST

_ASKED = re.compile(rb"[?&]q=(\d+)&n=(\d+)")
_PAGE = """\
vllm:num_requests_running{{model_name="m"}} {told.running}
vllm:num_requests_waiting{{model_name="m"}} {told.waiting}
vllm:kv_cache_usage_perc{{model_name="m"}} 0.5
vllm:iteration_tokens_total_count{{model_name="m"}} {told.iterations}
vllm:prompt_tokens_total{{model_name="m"}} {told.prefill_tokens}
vllm:generation_tokens_total{{model_name="m"}} {told.decode_tokens}
vllm:inter_token_latency_seconds_sum{{model_name="m"}} {told.itl_seconds}
vllm:inter_token_latency_seconds_count{{model_name="m"}} {told.itl_count}
"""


class Paced:
    """One engine on a port of its own. `speed` may be changed at any time and holds from the next iteration on."""

    def __init__(self, name: str, speed: float, curve: CostModel) -> None:
        self.name = name
        self.port = 0
        self._engine = Engine(speed, curve=curve)
        self._slow = 1.0
        self._fresh: deque[_Asked] = deque()
        self._server: asyncio.Server | None = None
        self.open: set[_Conversation] = set()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Conversation(self), HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for conversation in self.open:
            conversation.close()
        await asyncio.sleep(0)

    def throttle(self, factor: float) -> None:
        """On its speed; its cache stays as large as it is."""
        self._engine.curve = _slower(self._engine.curve, self._slow / factor)
        self._slow = factor

    def page(self) -> bytes:
        return _PAGE.format(told=self._engine.counters).encode()

    def add(self, conversation: _Conversation, prompt: int, answer: int) -> _Asked:
        asked = _Asked(time.monotonic(), max(1, prompt), max(1, answer), conversation=conversation)
        self._fresh.append(asked)
        self._engine.add(asked)
        if not self._engine.busy:
            self._begin(asked.arrived)
        return asked

    def _begin(self, now: float) -> None:
        end = self._engine.begin(now)
        if end is not None:
            asyncio.get_running_loop().call_at(end, self._end, end)

    def _end(self, now: float) -> None:
        """As of the moment for which it was planned: a late event loop makes no engine slower."""
        done = self._engine.end(now)
        while self._fresh and (self._fresh[0].first is not None or self._fresh[0].left):
            self._fresh.popleft().conversation.first()
        for request in done:
            assert isinstance(request, _Asked)
            request.conversation.last()
        self._begin(now)


class _Conversation(asyncio.Protocol):
    """One connection of a proxy."""

    def __init__(self, engine: Paced) -> None:
        self._engine = engine
        self._transport: asyncio.Transport | None = None
        self._asked: _Asked | None = None
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._engine.open.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        """A request that is still waiting for a slot will not get one."""
        self._engine.open.discard(self)
        if self._asked is not None:
            self._asked.left = True

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._read += data
        if not self._read.endswith(b"\r\n\r\n"):
            return
        line, self._read = self._read.partition(b"\r\n")[0], b""
        asked = _ASKED.search(line)
        if asked:
            self._asked = self._engine.add(self, int(asked[1]), int(asked[2]))
        else:
            body = self._engine.page() if b" /metrics" in line else b"ok"
            self._write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

    def first(self) -> None:
        name = self._engine.name.encode()
        self._write(b"HTTP/1.1 200 OK\r\nx-replica: " + name + b"\r\ncontent-length: 2\r\n\r\na")

    def last(self) -> None:
        self._write(b"b")

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


@dataclass(slots=True, kw_only=True)
class _Asked(SimulatedRequest):
    conversation: _Conversation


def _slower(curve: CostModel, factor: float) -> CostModel:
    return CostModel(
        curve.a * factor, curve.b * factor, curve.c * factor, curve.p * factor, curve.sequences, curve.cache
    )  # fmt: skip

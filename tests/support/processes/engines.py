"""Replicas that are inference engines: requests are batched, each step generates a token for every one of them, and
`/metrics` has vLLM's names. A slower engine takes longer for a step; a wedged engine stops."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.web import BaseRequest

from tests.support.processes.replicas import Replica

_STEP, _EACH, _PROMPT = 29.8, 0.202, 0.0715
"""Milliseconds per step, per sequence in it, and per token of a prompt."""
PAGE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{model_name="m"}} {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{model_name="m"}} {waiting}
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{model_name="m"}} {cache}
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_sum{{model_name="m"}} {tokens}
vllm:iteration_tokens_total_count{{model_name="m"}} {steps}
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{{model_name="m"}} {prompts}
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{model_name="m"}} {tokens}
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_sum{{model_name="m"}} {first_seconds}
vllm:time_to_first_token_seconds_count{{model_name="m"}} {firsts}
# TYPE vllm:inter_token_latency_seconds histogram
vllm:inter_token_latency_seconds_sum{{model_name="m"}} {between_seconds}
vllm:inter_token_latency_seconds_count{{model_name="m"}} {betweens}
# TYPE vllm:request_success_total counter
vllm:request_success_total{{model_name="m",finished_reason="stop"}} {finished}
"""


@dataclass(slots=True, eq=False)
class _Sequence:
    prompt: int
    left: int
    came: float
    first: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    started: bool = False


class Engine(Replica):
    """`speed`: an engine at 1.0 takes a third of the reference's time for a step.

    `slots`: number of sequences in a batch. The paths are the same as for any replica, except that all others take
    `?n=` tokens (20), after a prompt of `?q=` (50). With `?stream=1` the response begins with its first token.
    """

    def __init__(self, name: str, *, speed: float = 1.0, slots: int = 256) -> None:
        super().__init__(name)
        self.speed = speed
        self.slots = slots
        self.wedged = False
        self.silent = False
        """Whether its exporter does not respond."""
        self.scrapes = 0
        """Number of scrapes of its page."""
        self.more = ""
        """Additional lines of its page."""
        self._counters: dict[str, float] = dict.fromkeys(
            ("tokens", "steps", "prompts", "first_seconds", "firsts", "between_seconds", "betweens", "finished"), 0.0
        )
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._work: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    @property
    def metrics(self) -> str:
        """Return the address of its page, for a fleet file."""
        return f"http://{self.address}/metrics"

    async def _start(self) -> None:
        await super()._start()
        self._work = asyncio.get_running_loop().create_task(self._steps())

    async def _stop(self) -> None:
        if self._work is not None:
            self._work.cancel()
            with suppress(asyncio.CancelledError):
                await self._work
            self._work = None
        await super()._stop()

    async def _handle(self, request: BaseRequest) -> web.StreamResponse:
        if request.path != "/metrics":
            return await super()._handle(request)
        self.scrapes += 1
        return web.Response(status=503) if self.silent else web.Response(text=self.page())

    def page(self) -> str:
        """Return the current content of `/metrics`."""
        running = len(self._running)
        numbers: Mapping[str, Any] = {**self._counters, "running": running, "waiting": len(self._waiting)}
        return PAGE.format(**numbers, cache=min(1.0, running / self.slots)) + self.more

    async def _serve(self, request: BaseRequest) -> web.StreamResponse:
        self.requests += 1
        await request.read()
        query = request.query
        mine = _Sequence(int(query.get("q", 50)), int(query.get("n", 20)), time.monotonic())
        self._waiting.append(mine)
        self._news.set()
        try:
            return await self._answer(request, mine)
        finally:
            if not mine.done.is_set():
                mine.left = 0

    async def _answer(self, request: BaseRequest, mine: _Sequence) -> web.StreamResponse:
        headers = {"x-replica": self.name}
        if "stream" not in request.query:
            await mine.done.wait()
            return web.Response(text="{}", content_type="application/json", headers=headers)
        response = web.StreamResponse(headers={**headers, "content-type": "text/event-stream"})
        await mine.first.wait()
        await response.prepare(request)
        await response.write(b"data: {}\n\n")
        await mine.done.wait()
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _steps(self) -> None:
        while True:
            await self._unwedged()
            if not (self._waiting or self._running):
                self._news.clear()
                await self._news.wait()
                continue
            prompts = self._admit()
            seconds = (_STEP + _EACH * len(self._running) + _PROMPT * prompts) / 3000 / self.speed
            await asyncio.sleep(seconds)
            await self._unwedged()
            self._count(seconds, prompts)

    async def _unwedged(self) -> None:
        while self.wedged:
            await asyncio.sleep(0.01)

    def _admit(self) -> int:
        """Let sequences join the batch, and return the number of their prompt tokens."""
        joining: list[_Sequence] = []
        while self._waiting and len(self._running) + len(joining) < self.slots:
            joining.append(self._waiting.popleft())
        self._running += joining
        return sum(item.prompt for item in joining)

    def _count(self, seconds: float, prompts: int) -> None:
        counters = self._counters
        counters["steps"] += 1
        counters["prompts"] += prompts
        counters["tokens"] += len(self._running)
        for item in self._running:
            if item.started:
                counters["between_seconds"] += seconds
                counters["betweens"] += 1
            else:
                item.started = True
                item.first.set()
                counters["first_seconds"] += time.monotonic() - item.came
                counters["firsts"] += 1
            item.left -= 1
            if item.left <= 0:
                counters["finished"] += 1
                item.done.set()
        self._running = [item for item in self._running if item.left > 0]


@contextmanager
def engines(*names: str, **keys: Any) -> Iterator[list[Engine]]:
    """Run engines of these names: `with engines("a", "b") as (a, b):`."""
    with ExitStack() as stack:
        all_engines = [Engine(name, **keys) for name in names]
        for engine in all_engines:
            stack.enter_context(engine)
        yield all_engines

"""A model server with continuous batching, simulated one iteration at a time.

In each iteration, every running sequence generates a token, and prompt tokens are prefilled up to a budget. An
iteration takes (a + b·sequences + c·context + p·prompt tokens) ÷ speed, with the constants from its `CostModel`.
Requests that exceed the maximum number of sequences or the cache size wait in order. Counters are published at the end
of an iteration, so a wedged engine's counters freeze. Preemption is not modelled, so the cache may overflow while
responses grow.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from itertools import takewhile

BUDGET = 2048
"""Maximum number of prompt tokens per iteration."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """The cost of an iteration. The defaults are the costs of Llama-2-70B on 8 H100s (Splitwise's profile)."""

    a: float = 29.8e-3
    """Seconds per iteration."""
    b: float = 0.202e-3
    """Seconds per sequence."""
    c: float = 1.78e-7
    """Seconds per token of context."""
    p: float = 0.0715e-3
    """Seconds per prompt token."""
    sequences: int = 256
    """Maximum number of concurrent sequences."""
    cache: int = 400_000
    """Cache size in tokens, at a speed of 1."""


@dataclass(slots=True)
class SimulatedRequest:
    """A request. Times are in seconds."""

    arrived: float
    prompt: int
    """Length of the prompt, in tokens."""
    answer: int
    """Length of the response, in tokens."""
    replica: int = -1
    proxy: int = -1
    first: float | None = None
    """Time of the request's first token, if any."""
    last: float | None = None
    """Time of the request's last token, if any."""
    left: bool = False
    """Whether the client has given up."""
    blocks: tuple[int, ...] = ()
    """Blocks at the beginning of the prompt, each identified by all content up to its end."""
    cached: int = 0
    """Number of prompt tokens found in the engine's prefix cache on admission."""


@dataclass(frozen=True, slots=True)
class SpeedFault:
    """A change in speed between two times, in seconds."""

    begin: float
    """Start time."""
    end: float
    """End time."""
    factor: float
    """Multiplier of the speed; 0 means that the engine is wedged."""
    prompts_alone: bool = False
    """Whether only prefill is slower, as under a power cap."""


@dataclass(slots=True)
class EngineCounters:
    """The metrics that the engine publishes."""

    iterations: float = 0.0
    prefill_tokens: float = 0.0
    """Prompt tokens computed."""
    cached_tokens: float = 0.0
    """Prompt tokens found in the prefix cache."""
    decode_tokens: float = 0.0
    itl_seconds: float = 0.0
    itl_count: float = 0.0
    running: int = 0
    waiting: int = 0
    usage: float = 0.0
    """Used fraction of the KV cache, at most 1."""


class PrefixCache:
    """The blocks in an engine's cache. The least recently used blocks are evicted first."""

    def __init__(self, blocks: float, block_tokens: int) -> None:
        self._limit, self._block_tokens = blocks, block_tokens
        self._held: dict[int, None] = {}

    def use(self, request: SimulatedRequest) -> int:
        """Add the request's blocks to the cache. Return the number of its tokens that were already cached."""
        tokens = self.hits(request)
        for block in request.blocks:
            self._held.pop(block, None)
            self._held[block] = None
        while len(self._held) > self._limit:
            del self._held[next(iter(self._held))]
        return tokens

    def hits(self, request: SimulatedRequest) -> int:
        """Return the number of the request's tokens that are in the cache."""
        blocks = sum(1 for _ in takewhile(self._held.__contains__, request.blocks))
        return min(blocks * self._block_tokens, request.prompt - 1)


@dataclass(slots=True)
class Engine:
    """The state of one engine."""

    speed: float
    """Speed, relative to the cost model."""
    faults: tuple[SpeedFault, ...] = ()
    curve: CostModel = CostModel()
    prefix_cache: PrefixCache | None = None
    counters: EngineCounters = field(default_factory=EngineCounters)
    busy: bool = False
    _waiting: deque[SimulatedRequest] = field(default_factory=deque)
    _running: list[tuple[int, int, SimulatedRequest]] = field(default_factory=list)
    _reading: list[tuple[SimulatedRequest, int]] = field(default_factory=list)
    _context: int = 0
    _number: int = 0
    _step: tuple[float, int, list[SimulatedRequest]] = (0.0, 0, [])

    @property
    def context(self) -> int:
        """Number of tokens in its cache."""
        return self._context

    @property
    def usage(self) -> float:
        """Used fraction of its cache; above 1 if responses have outgrown it."""
        return self._context / cache_tokens(self.speed, self.curve)

    def wait(self, request: SimulatedRequest, now: float) -> float:
        """Return an estimate, from complete information, of the time that the request waits for its first token."""
        begin, factor, prompt_factor = self._factor(now)
        unread = sum(left for _, left in self._reading) + sum(item.prompt for item in self._waiting)
        tokens = unread + request.prompt - (self.prefix_cache.hits(request) if self.prefix_cache else 0)
        count, curve = len(self._running), self.curve
        steps = math.ceil(tokens / max(1, BUDGET - count))
        seconds = steps * (curve.a + curve.b * count + curve.c * self._context) + curve.p * tokens / prompt_factor
        return begin - now + seconds / (self.speed * factor)

    def add(self, request: SimulatedRequest) -> None:
        """Queue a request."""
        self._waiting.append(request)

    def begin(self, now: float) -> float | None:
        """Start an iteration and return the time at which it ends; None if there is nothing to do."""
        self._admit()
        if not self._reading and not self._running:
            self.busy = False
            return None
        begin, factor, prompt_factor = self._factor(now)
        tokens, read = self._read(BUDGET - len(self._running))
        count, curve = len(self._running), self.curve
        seconds = curve.a + curve.b * count + curve.c * self._context + curve.p * tokens / prompt_factor
        seconds /= self.speed * factor
        self._step = (seconds, tokens, read)
        self.busy = True
        return begin + seconds

    def end(self, now: float) -> list[SimulatedRequest]:
        """End the iteration and return the completed requests."""
        seconds, tokens, read = self._step
        count, counters = len(self._running), self.counters
        counters.iterations += 1
        counters.prefill_tokens += tokens
        counters.cached_tokens += sum(request.cached for request in read)
        counters.decode_tokens += count + len(read)
        counters.itl_seconds += count * seconds
        counters.itl_count += count
        self._context += count + tokens
        step = int(counters.iterations)
        for request in read:
            request.first = now
            self._number += 1
            heapq.heappush(self._running, (step + request.answer - 1, self._number, request))
        done = []
        while self._running and self._running[0][0] <= step:
            request = heapq.heappop(self._running)[2]
            request.last = now
            self._context -= request.prompt - request.cached + request.answer - 1
            done.append(request)
        counters.running, counters.waiting = len(self._running) + len(self._reading), len(self._waiting)
        counters.usage = min(1.0, self.usage)
        return done

    def _factor(self, now: float) -> tuple[float, float, float]:
        """Return (earliest start, speed factor at that time, additional factor for prefill)."""
        for fault in self.faults:
            if fault.begin <= now < fault.end:
                if fault.prompts_alone:
                    return now, 1.0, fault.factor
                return (now, fault.factor, 1.0) if fault.factor else (fault.end, 1.0, 1.0)
        return now, 1.0, 1.0

    def _admit(self) -> None:
        limit = cache_tokens(self.speed, self.curve)
        prefilling = sum(left for _, left in self._reading)
        while self._waiting and len(self._running) + len(self._reading) < self.curve.sequences:
            request = self._waiting[0]
            if request.left:
                self._waiting.popleft()
                continue
            if self._context + prefilling + request.prompt > limit and self._context + prefilling:
                return
            self._waiting.popleft()
            request.cached = self.prefix_cache.use(request) if self.prefix_cache else 0
            prefilling += request.prompt - request.cached
            self._reading.append((request, request.prompt - request.cached))

    def _read(self, budget: int) -> tuple[int, list[SimulatedRequest]]:
        """Return (prompt tokens in this iteration, requests whose prefill it completes)."""
        tokens, read, rest = 0, [], []
        for request, left in self._reading:
            part = min(left, budget - tokens)
            tokens += part
            if part == left:
                read.append(request)
            else:
                rest.append((request, left - part))
        self._reading = rest
        return tokens, read


def cache_tokens(speed: float, curve: CostModel = CostModel()) -> float:
    """Return the cache size in tokens: 400k, 180k and 100k for speeds in the ratio 5 : 2 : 1."""
    return curve.cache * math.pow(speed, 0.86)


def saturated_rate(
    speed: float, prompt: float, answer: float, curve: CostModel = CostModel(), *, cached: float = 0.0
) -> float:
    """Return the number of requests per second that a never-idle engine answers, given these mean lengths in tokens.

    `cached`: prompt tokens that need no prefill.
    """
    context = prompt + answer / 2
    count = min(curve.sequences, cache_tokens(speed, curve) / context)
    seconds = curve.a + curve.b * count + curve.c * count * context + curve.p * count / answer * (prompt - cached)
    return speed * count / answer / seconds

"""A model server that batches continuously, one iteration at a time.

Each iteration every running sequence makes a token, and up to a budget of prompt tokens is read:
(a + b·sequences + c·context + p·prompt tokens) ÷ speed, with the numbers of its `Curve`. Who fits neither into the
sequences nor into the cache waits in order. Counters are published at the end of an iteration, so a wedged engine shows
frozen ones. Nobody is put out again: a cache that overflows while answers grow is not modelled.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field

BUDGET = 2048
"""Prompt tokens in an iteration, at most."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds of an iteration, for each sequence, token of context, token of a prompt; Llama-2-70B on 8 H100
    (Splitwise's profile) unless said otherwise. `sequences` at once, and `cache` in tokens at a speed of 1."""

    a: float = 29.8e-3
    b: float = 0.202e-3
    c: float = 1.78e-7
    p: float = 0.0715e-3
    sequences: int = 256
    cache: int = 400_000


@dataclass(slots=True)
class Request:
    """`first`, `last`: when its first and last token came; None if they have not. `left`: the client gave up."""

    arrived: float
    prompt: int
    answer: int
    replica: int = -1
    proxy: int = -1
    first: float | None = None
    last: float | None = None
    left: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """`factor` on the speed from `begin` to `end`; 0 is a wedge."""

    begin: float
    end: float
    factor: float


@dataclass(slots=True)
class Counters:
    iterations: float = 0.0
    prefill_tokens: float = 0.0
    decode_tokens: float = 0.0
    itl_seconds: float = 0.0
    itl_count: float = 0.0
    running: int = 0
    waiting: int = 0


@dataclass(slots=True)
class Engine:
    """`speed` of 1 is the reference."""

    speed: float
    faults: tuple[Fault, ...] = ()
    curve: Curve = Curve()
    counters: Counters = field(default_factory=Counters)
    busy: bool = False
    _waiting: deque[Request] = field(default_factory=deque)
    _running: list[tuple[int, int, Request]] = field(default_factory=list)
    _reading: list[tuple[Request, int]] = field(default_factory=list)
    _context: int = 0
    _number: int = 0
    _step: tuple[float, int, list[Request]] = (0.0, 0, [])

    def add(self, request: Request) -> None:
        self._waiting.append(request)

    def begin(self, now: float) -> float | None:
        """When the iteration that begins now will end; None where there is nothing to do."""
        self._admit()
        if not self._reading and not self._running:
            self.busy = False
            return None
        begin, factor = self._factor(now)
        tokens, read = self._read(BUDGET - len(self._running))
        count, curve = len(self._running), self.curve
        seconds = curve.a + curve.b * count + curve.c * self._context + curve.p * tokens
        seconds /= self.speed * factor
        self._step = (seconds, tokens, read)
        self.busy = True
        return begin + seconds

    def end(self, now: float) -> list[Request]:
        """The requests that the iteration has answered."""
        seconds, tokens, read = self._step
        count, told = len(self._running), self.counters
        told.iterations += 1
        told.prefill_tokens += tokens
        told.decode_tokens += count + len(read)
        told.itl_seconds += count * seconds
        told.itl_count += count
        self._context += count + tokens
        step = int(told.iterations)
        for request in read:
            request.first = now
            self._number += 1
            heapq.heappush(self._running, (step + request.answer - 1, self._number, request))
        done = []
        while self._running and self._running[0][0] <= step:
            request = heapq.heappop(self._running)[2]
            request.last = now
            self._context -= request.prompt + request.answer - 1
            done.append(request)
        told.running, told.waiting = len(self._running) + len(self._reading), len(self._waiting)
        return done

    def _factor(self, now: float) -> tuple[float, float]:
        """(when it can begin, the factor on its speed then)"""
        for fault in self.faults:
            if fault.begin <= now < fault.end:
                return (now, fault.factor) if fault.factor else (fault.end, 1.0)
        return now, 1.0

    def _admit(self) -> None:
        most = cache(self.speed, self.curve)
        reading = sum(left for _, left in self._reading)
        while self._waiting and len(self._running) + len(self._reading) < self.curve.sequences:
            request = self._waiting[0]
            if request.left:
                self._waiting.popleft()
                continue
            if self._context + reading + request.prompt > most and self._context + reading:
                return
            self._waiting.popleft()
            reading += request.prompt
            self._reading.append((request, request.prompt))

    def _read(self, budget: int) -> tuple[int, list[Request]]:
        """(prompt tokens of this iteration, the requests whose prompt is read with it)"""
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


def cache(speed: float, curve: Curve = Curve()) -> float:
    """Tokens: 400k, 180k and 100k for speeds of 5 : 2 : 1."""
    return curve.cache * math.pow(speed, 0.86)


def saturated(speed: float, prompt: float, answer: float, curve: Curve = Curve()) -> float:
    """Requests a second of an engine that always has enough to do, for these mean lengths."""
    context = prompt + answer / 2
    count = min(curve.sequences, cache(speed, curve) / context)
    seconds = curve.a + curve.b * count + curve.c * count * context + curve.p * count / answer * prompt
    return speed * count / answer / seconds

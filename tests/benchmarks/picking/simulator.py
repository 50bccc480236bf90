"""One pool of engines, several proxies, one trace, in the order of time."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lbctl.simulate.engine import Engine, PrefixCache, SimulatedRequest, cache_tokens
from lbctl.simulate.scenario import SimulatedReplica
from tests.benchmarks.picking.policies import Picker, Policy
from tests.benchmarks.picking.traces import BLOCK, Arrival

PATIENCE = 60.0
_ARRIVE, _STEP, _SCRAPE, _REPORT, _EXCHANGE = range(5)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What clients saw, seconds; a client that gave up counts with its patience."""

    first: list[float]
    per_token: list[float]
    hits: float
    failed: int
    moved: int
    imbalance: float

    def percentile(self, percent: float) -> float:
        ordered = sorted(self.first)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


@dataclass(slots=True)
class Fleet:
    """The parameters of a run."""

    members: Sequence[SimulatedReplica]
    proxies: int = 1
    interval: float = 1.0
    delay: float = 0.2
    exchange: float | None = None
    cache: float = 0.7
    warm_up: float = 30.0


def run(fleet: Fleet, arrivals: Sequence[Arrival], policy: Callable[[int, Sequence[Engine]], Policy]) -> Outcome:
    """Replay the arrivals; `policy` makes the choice of one proxy."""
    return _Run(fleet, arrivals, policy).result()


class _Run:
    def __init__(self, fleet: Fleet, arrivals: Sequence[Arrival], policy: Callable[..., Policy]) -> None:
        self._fleet = fleet
        self._engines = [
            Engine(
                item.speed, item.faults, prefix_cache=PrefixCache(fleet.cache * cache_tokens(item.speed) / BLOCK, BLOCK)
            )
            for item in fleet.members
        ]
        self._policies = [policy(index, self._engines) for index in range(fleet.proxies)]
        self._rng = random.Random(5)
        self._requests = [SimulatedRequest(item.at, item.prompt, item.answer, blocks=item.blocks) for item in arrivals]
        self._arrivals = arrivals
        self._firsts = [0] * len(self._engines)
        self._number = {id(request): index for index, request in enumerate(self._requests)}
        self._events: list[tuple[float, int, int, object]] = []
        self._sequence = 0
        self._last: dict[str, int] = {}
        self._moved = 0

    def result(self) -> Outcome:
        for index, item in enumerate(self._arrivals):
            self._at(item.at, _ARRIVE, index)
        end = self._arrivals[-1].at + PATIENCE
        self._at(0.0, _SCRAPE, None)
        if self._fleet.exchange:
            self._at(0.0, _EXCHANGE, None)
        while self._events and self._events[0][0] < end:
            now, _, kind, data = heapq.heappop(self._events)
            (self._arrive, self._step, self._scrape, self._report, self._exchange)[kind](now, data)
        return self._outcome()

    def _at(self, when: float, kind: int, data: object) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (when, self._sequence, kind, data))

    def _arrive(self, now: float, index: int) -> None:
        request, arrival = self._requests[index], self._arrivals[index]
        request.proxy = self._rng.randrange(len(self._policies))
        place = request.replica = self._policies[request.proxy].choose(index, arrival, request, now)
        if arrival.session:
            self._moved += self._last.get(arrival.session, place) != place
            self._last[arrival.session] = place
        self._engines[place].add(request)
        if not self._engines[place].busy:
            self._begin(now, place)

    def _begin(self, now: float, place: int) -> None:
        end = self._engines[place].begin(now)
        if end is not None:
            self._at(end, _STEP, place)

    def _step(self, now: float, place: int) -> None:
        engine = self._engines[place]
        reading = engine._step[2]
        done = engine.end(now)
        self._firsts[place] += len(reading)
        for request in reading:
            self._policies[request.proxy].first(self._number[id(request)], now)
        for request in done:
            self._policies[request.proxy].ended(self._number[id(request)], place, now)
        self._begin(now, place)

    def _scrape(self, now: float, _: object) -> None:
        import copy

        seen = [(copy.copy(engine.counters), count) for engine, count in zip(self._engines, self._firsts, strict=True)]
        self._at(now + self._fleet.delay, _REPORT, seen)
        self._at(now + self._fleet.interval, _SCRAPE, None)

    def _report(self, now: float, seen: object) -> None:
        for policy in self._policies:
            policy.scraped([item[0] for item in seen], [item[1] for item in seen], now)

    def _exchange(self, now: float, _: object) -> None:
        pickers = [policy for policy in self._policies if isinstance(policy, Picker)]
        counts = [picker.books.snapshot() for picker in pickers]
        for picker in pickers:
            for other, report in zip(pickers, counts, strict=True):
                if other is not picker:
                    picker.books.merge(other.name, report, now)
        self._at(now + self._fleet.exchange, _EXCHANGE, None)

    def _outcome(self) -> Outcome:
        counted = [item for item in self._requests if item.arrived >= self._fleet.warm_up]
        first = [min(PATIENCE, item.first - item.arrived) if item.first else PATIENCE for item in counted]
        per_token = [
            (item.last - item.first) / (item.answer - 1)
            for item in counted
            if item.first is not None and item.last is not None and item.answer > 1
        ]
        done = [item for item in counted if item.first is not None]
        hits = sum(item.cached for item in done) / max(1, sum(item.prompt for item in done))
        failed = sum(value >= PATIENCE for value in first)
        work = [0.0] * len(self._engines)
        for item in done:
            work[item.replica] += (item.prompt - item.cached) / self._fleet.members[item.replica].speed
        return Outcome(first, per_token, hits, failed, self._moved, max(work) / (sum(work) / len(work)))

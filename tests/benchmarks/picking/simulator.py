"""A simulation of one pool of engines, several proxies and one trace, in order of time."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass

from lbctl.base.percentiles import percentile_of
from lbctl.ir.weight import Weight, from_capacity
from lbctl.pick.affinity import AffinityBatch
from lbctl.pick.books import Count
from lbctl.simulate.engine import Engine, EngineCounters, PrefixCache, SimulatedRequest, cache_tokens
from lbctl.simulate.scenario import SimulatedReplica
from tests.benchmarks.picking.control import Control
from tests.benchmarks.picking.policies import POOL, Picker, Policy
from tests.benchmarks.picking.traces import BLOCK, Arrival

TIMEOUT = 60.0
_TRANSIT = 0.1
_ARRIVE, _STEP, _SCRAPE, _REPORT, _EXCHANGE, _CONTROL, _SHARE, _SHARED, _RESTART, _LEAVE, _RETURN = range(11)
_NONE = Count(0, 0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of all clients, in seconds. A client that gave up counts with its patience.

    `changes`: how often the control loop has changed weights.
    """

    first: list[float]
    whole: list[float]
    per_token: list[float]
    hits: float
    failed: int
    moved: int
    changes: int
    imbalance: float
    found: float | None
    """Cached tokens divided by the tokens that pickers expected in caches; None without a picker's expectation."""

    def percentile(self, percent: float) -> float:
        return percentile_of(self.first, percent)


@dataclass(frozen=True, slots=True)
class Absence:
    """The time in seconds in which a replica gets no requests. It returns with an empty cache, and in slow start."""

    place: int
    begin: float
    end: float


@dataclass(slots=True)
class Fleet:
    """The parameters of a run."""

    members: Sequence[SimulatedReplica]
    proxies: int = 1
    interval: float = 1.0
    delay: float = 0.2
    exchange: float | None = None
    share: float | None = None
    """Seconds between exchanges of the pickers' memories, which arrive after another tenth of a second."""
    cache: float = 0.7
    adaptive: bool = False
    """Whether weights follow the reports of the engines, by the law of `serve`."""
    restarts: float | None = None
    """Seconds between two restarts of `serve`; None for no restarts."""
    spread: bool = False
    """Whether the replicas are scraped at different times. `serve` scrapes them all at once for the picker."""
    absences: Sequence[Absence] = ()
    warm_up: float = 30.0


def run(fleet: Fleet, arrivals: Sequence[Arrival], policy: Callable[[int, Sequence[Engine]], Policy]) -> Outcome:
    """Replay the arrivals. `policy` makes the policy of one proxy."""
    return _Run(fleet, arrivals, policy).result()


class _Run:
    def __init__(self, fleet: Fleet, arrivals: Sequence[Arrival], policy: Callable[..., Policy]) -> None:
        self._fleet = fleet
        self._engines = [Engine(item.speed, item.faults, item.curve, self._cache(item)) for item in fleet.members]
        self._policies = [policy(index, self._engines) for index in range(fleet.proxies)]
        is_picked = isinstance(self._policies[0], Picker)
        self._control = Control(fleet.members, fleet.interval, is_picked=is_picked) if fleet.adaptive else None
        self._weights: list[Weight | None] = [from_capacity(item.capacity) for item in fleet.members]
        self._away: set[int] = set()
        self._began: dict[int, float] = {}
        self._changes = 0
        self._active = [0] * len(self._engines)
        self._rng = random.Random(5)
        self._requests = [SimulatedRequest(item.at, item.prompt, item.answer, blocks=item.blocks) for item in arrivals]
        self._arrivals = arrivals
        self._firsts = [0] * len(self._engines)
        self._reports: list[tuple[float, EngineCounters]] = [(0.0, copy(engine.counters)) for engine in self._engines]
        self._number = {id(request): index for index, request in enumerate(self._requests)}
        self._events: list[tuple[float, int, int, object]] = []
        self._handlers = (
            self._arrive, self._step, self._scrape, self._report, self._exchange, self._weigh, self._share,
            self._receive_shared, self._restart, self._leave, self._return,
        )  # fmt: skip
        self._sequence = 0
        self._last: dict[str, int] = {}
        self._moved = 0

    def result(self) -> Outcome:
        for index, item in enumerate(self._arrivals):
            self._at(item.at, _ARRIVE, index)
        end = self._arrivals[-1].at + TIMEOUT
        phases = random.Random(6)
        together = phases.random()
        for place in range(len(self._engines)):
            phase = phases.random() if self._fleet.spread else together
            self._at(phase * self._fleet.interval, _SCRAPE, place)
        if self._control is not None:
            self._at(self._fleet.interval, _CONTROL, None)
        if self._fleet.restarts:
            self._at(self._fleet.restarts, _RESTART, None)
        if self._fleet.exchange:
            self._at(0.0, _EXCHANGE, None)
        if self._fleet.share:
            self._at(0.0, _SHARE, None)
        for absence in self._fleet.absences:
            self._at(absence.begin, _LEAVE, absence.place)
            self._at(absence.end, _RETURN, absence.place)
        while self._events and self._events[0][0] < end:
            now, _, kind, data = heapq.heappop(self._events)
            self._handlers[kind](now, data)
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
        self._active[place] += 1
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
        self._active[place] -= len(done)
        for request in done:
            self._policies[request.proxy].ended(self._number[id(request)], place, now)
        self._begin(now, place)

    def _scrape(self, now: float, place: int) -> None:
        report = (place, now, copy(self._engines[place].counters), self._firsts[place])
        self._at(now + self._fleet.delay, _REPORT, report)
        self._at(now + self._fleet.interval, _SCRAPE, place)

    def _report(self, now: float, report: tuple[int, float, EngineCounters, int]) -> None:
        place, taken, counters, firsts = report
        self._reports[place] = taken, counters
        for policy in self._policies:
            policy.scraped(place, counters, firsts, now)

    def _weigh(self, now: float, _: object) -> None:
        """Update the weights from the newest report of each engine."""
        before, self._weights = self._weights, self._control.observe(self._reports, self._active, now)
        if self._weights != before:
            self._changes += 1
            self._use_weights()
        self._at(now + self._fleet.interval, _CONTROL, None)

    def _leave(self, now: float, place: int) -> None:
        self._away.add(place)
        self._use_weights()

    def _return(self, now: float, place: int) -> None:
        self._engines[place].prefix_cache = self._cache(self._fleet.members[place])
        self._away.remove(place)
        self._began[place] = now
        self._use_weights()

    def _use_weights(self) -> None:
        weights = [None if place in self._away else weight for place, weight in enumerate(self._weights)]
        for policy in self._policies:
            policy.use_weights(weights, self._began)

    def _cache(self, member: SimulatedReplica) -> PrefixCache:
        return PrefixCache(self._fleet.cache * cache_tokens(member.speed, member.curve) / BLOCK, BLOCK)

    def _restart(self, now: float, _: object) -> None:
        self._control.start(now)
        self._at(now + self._fleet.restarts, _RESTART, None)

    def _exchange(self, now: float, _: object) -> None:
        """Send each picker the sum of the counts of the others."""
        pickers = [policy for policy in self._policies if isinstance(policy, Picker)]
        counts = [picker.books.snapshot().get(POOL, {}) for picker in pickers]
        names = {name for replicas in counts for name in replicas}
        total = {name: _added(replicas.get(name, _NONE) for replicas in counts) for name in names}
        for picker, own in zip(pickers, counts, strict=True):
            others = {name: _without(total[name], own.get(name, _NONE)) for name in names}
            picker.books.merge("others", {POOL: others}, now)
        self._at(now + self._fleet.exchange, _EXCHANGE, None)

    def _share(self, now: float, _: object) -> None:
        """Send the new entries of each picker's memory to the others."""
        pickers = [policy for policy in self._policies if isinstance(policy, Picker)]
        for sender in pickers:
            for batch in sender.affinity.batches(sender.affinity.take_changes()):
                self._at(now + _TRANSIT, _SHARED, (sender, batch, pickers))
        self._at(now + self._fleet.share, _SHARE, None)

    def _receive_shared(self, now: float, sent: tuple[Picker, AffinityBatch, Sequence[Picker]]) -> None:
        sender, batch, pickers = sent
        for receiver in pickers:
            if receiver is not sender:
                receiver.affinity.merge(batch, now, yields=receiver.name > sender.name)

    def _outcome(self) -> Outcome:
        counted = [item for item in self._requests if item.arrived >= self._fleet.warm_up]
        first = [min(TIMEOUT, item.first - item.arrived) if item.first else TIMEOUT for item in counted]
        whole = [min(TIMEOUT, item.last - item.arrived) if item.last else TIMEOUT for item in counted]
        per_token = [
            (item.last - item.first) / (item.answer - 1)
            for item in counted
            if item.first is not None and item.last is not None and item.answer > 1
        ]
        done = [item for item in counted if item.first is not None]
        hits = sum(item.cached for item in done) / max(1, sum(item.prompt for item in done))
        failed = sum(value >= TIMEOUT for value in first)
        work = [0.0] * len(self._engines)
        for item in done:
            work[item.replica] += (item.prompt - item.cached) / self._fleet.members[item.replica].speed
        imbalance = max(work) / (sum(work) / len(work))
        return Outcome(first, whole, per_token, hits, failed, self._moved, self._changes, imbalance, self._found(done))

    def _found(self, done: Sequence[SimulatedRequest]) -> float | None:
        pickers = [policy for policy in self._policies if isinstance(policy, Picker)]
        expected = sum(picker.expected.get(self._number[id(item)], 0.0) for item in done for picker in pickers)
        return sum(item.cached for item in done) / expected if expected else None


def _added(counts: Iterable[Count]) -> Count:
    return Count(*map(sum, zip(*counts, strict=True)))


def _without(total: Count, own: Count) -> Count:
    return Count(*(all_ - mine for all_, mine in zip(total, own, strict=True)))

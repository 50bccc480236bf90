"""Runs a scenario: arrivals, engines and proxies as events in order of time, between them the real `control.step`."""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lbctl.control.effects import Effect, HealthChanged, RampsChanged, WeightsChanged
from lbctl.control.events import FleetChanged, Looked
from lbctl.control.inputs import Seen
from lbctl.control.state import State
from lbctl.control.step import step
from lbctl.ir.address import Address
from lbctl.ir.pools import Pool, Replica, Telemetry
from lbctl.ir.weight import Weight, plain
from lbctl.signals.derive import TokenEvidence
from lbctl.signals.merge import Signal, Signals
from lbctl.simulate.engine import Counters, Engine, Request, saturated
from lbctl.simulate.proxies import PROXIES, Proxy
from lbctl.simulate.scenario import Scenario

_POOL = "pool"
_PROMPT, _PROMPT_SPREAD, _ANSWER, _ANSWER_SPREAD = 900.0, 0.7, 130.0, 0.9
"""Medians and spreads of lognormal lengths, like those of a public conversation trace."""
_MEAN_PROMPT = _PROMPT * math.exp(_PROMPT_SPREAD**2 / 2)
_MEAN_ANSWER = _ANSWER * math.exp(_ANSWER_SPREAD**2 / 2)
_ARRIVAL, _ITERATION, _LOOK, _NEWS, _PUSH, _JOIN = range(6)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of the requests that arrived after the warm-up. Seconds; who left counts with the patience. `history`: (time,
    rate of each replica, None where it is out) at every change."""

    requests: tuple[Request, ...]
    history: tuple[tuple[float, tuple[float | None, ...]], ...]
    end: float
    patience: float

    def first_token(self, percentile: float = 99.0, since: float = 0.0) -> float:
        """Of time to the first token."""
        return _percentile([self._first(item) for item in self.requests if item.arrived >= since], percentile)

    def per_token(self, percentile: float = 99.0, since: float = 0.0) -> float:
        """Of the mean time between the tokens of a request that ended."""
        return _percentile(
            [
                (item.last - item.first) / (item.answer - 1)
                for item in self.requests
                if item.last is not None and item.first is not None and item.answer > 1 and item.arrived >= since
            ],
            percentile,
        )

    def failed(self) -> float:
        """The part of the requests whose clients left."""
        return sum(item.left for item in self.requests) / max(1, len(self.requests))

    def share(self, replica: int, since: float = 0.0) -> float:
        there = [item for item in self.requests if item.arrived >= since]
        return sum(item.replica == replica for item in there) / max(1, len(there))

    def weights(self, at: float) -> tuple[float | None, ...]:
        """As the proxies had them then."""
        return next(weights for time, weights in reversed(self.history) if time <= at)

    def _first(self, item: Request) -> float:
        return self.patience if item.left or item.first is None else item.first - item.arrived


def run(scenario: Scenario, seed: int) -> Outcome:
    """One run; the same seed gives the same arrivals whatever the weighting is."""
    return _Run(scenario, seed).go()


class _Run:
    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._scenario = scenario
        self._arrivals = random.Random(f"arrivals {seed}")
        self._rng = random.Random(f"rest {seed}")
        members = scenario.members
        self._engines = [Engine(item.speed, item.faults) for item in members]
        self._kind = PROXIES[scenario.algorithm]
        self._proxies: list[Proxy] = [self._kind.make(len(members), self._rng) for _ in range(scenario.proxies)]
        self._names = tuple(f"r{place}" for place in range(len(members)))
        there = (saturated(item.speed, _MEAN_PROMPT, _MEAN_ANSWER) for item in members if not item.joins)
        self._rate = scenario.load * sum(there)
        self._before: list[tuple[float, Counters] | None] = [None] * len(members)
        self._queue: list[tuple[float, int, int, object]] = []
        self._number = 0
        self._requests: list[Request] = []
        self._patient: deque[Request] = deque()
        self._state = State()
        self._weights: dict[str, Weight] = {}
        self._told: Sequence[float | None] = ()
        self._ramps: dict[str, float] = {}
        self._out: set[str] = set()
        self._history: list[tuple[float, tuple[float | None, ...]]] = []
        self._pushed_at = float("-inf")
        self._push_waits = False

    def go(self) -> Outcome:
        scenario = self._scenario
        self._fleet(0.0)
        for place, member in enumerate(scenario.members):
            if member.joins:
                self._at(member.joins, _JOIN, place)
        self._at(self._arrivals.expovariate(self._rate), _ARRIVAL, None)
        self._at(scenario.interval, _LOOK, None)
        while self._queue and self._queue[0][0] < scenario.seconds:
            now, _, kind, what = heapq.heappop(self._queue)
            self._leave(now)
            self._happen(now, kind, what)
        counted = tuple(item for item in self._requests if item.arrived >= scenario.warm_up)
        self._leave(scenario.seconds)
        ended = tuple(item for item in counted if item.first is not None or item.left)
        return Outcome(ended, tuple(self._history), scenario.seconds, scenario.patience)

    def _at(self, time: float, kind: int, what: object) -> None:
        self._number += 1
        heapq.heappush(self._queue, (time, self._number, kind, what))

    def _happen(self, now: float, kind: int, what: object) -> None:
        if kind == _ARRIVAL:
            self._arrive(now)
        elif kind == _ITERATION and isinstance(what, int):
            self._iterate(now, what)
        elif kind == _LOOK:
            self._look(now)
        elif kind == _NEWS and isinstance(what, dict):
            self._news(now, what)
        elif kind == _PUSH:
            self._push_waits = False
            self._push(now)
        elif kind == _JOIN:
            self._fleet(now)

    # ── Requests ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _arrive(self, now: float) -> None:
        rng, burst = self._arrivals, self._scenario.burst
        for _ in range(1 if burst == 1 else max(1, round(rng.expovariate(1 / burst)))):
            prompt = min(8000, max(16, int(rng.lognormvariate(math.log(_PROMPT), _PROMPT_SPREAD))))
            answer = min(1000, max(2, int(rng.lognormvariate(math.log(_ANSWER), _ANSWER_SPREAD))))
            self._send(Request(now, prompt, answer, proxy=rng.randrange(len(self._proxies))))
        self._at(now + rng.expovariate(self._rate / burst), _ARRIVAL, None)

    def _send(self, request: Request) -> None:
        proxy = self._proxies[request.proxy]
        place = proxy.pick()
        proxy.active[place] += 1
        request.replica = place
        self._requests.append(request)
        self._patient.append(request)
        engine = self._engines[place]
        engine.add(request)
        if not engine.busy:
            self._begin(request.arrived, place)

    def _begin(self, now: float, place: int) -> None:
        end = self._engines[place].begin(now)
        if end is not None:
            self._at(end, _ITERATION, place)

    def _iterate(self, now: float, place: int) -> None:
        for request in self._engines[place].end(now):
            if not request.left:
                self._proxies[request.proxy].active[place] -= 1
        self._begin(now, place)

    def _leave(self, now: float) -> None:
        patient, patience = self._patient, self._scenario.patience
        while patient and patient[0].arrived + patience <= now:
            request = patient.popleft()
            if request.first is None:
                request.left = True
                self._proxies[request.proxy].active[request.replica] -= 1

    # ── Samples ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _look(self, now: float) -> None:
        seen = {}
        for place, name in enumerate(self._names):
            if self._scenario.members[place].joins > now or self._rng.random() < self._scenario.loss:
                continue
            seen[name] = self._seen(now, place)
        self._at(now + self._scenario.delay, _NEWS, seen)
        self._at(now + self._scenario.interval, _LOOK, None)

    def _seen(self, now: float, place: int) -> Seen:
        told = self._engines[place].counters
        before, self._before[place] = self._before[place], (now, replace(told))
        values = {
            "progress": Signal(told.iterations, now, 0),
            "running": Signal(told.running, now, 0),
            "queue": Signal(told.waiting, now, 0),
        }
        flight = sum(proxy.active[place] for proxy in self._proxies)
        return Seen(now, Signals(values, {}, self._evidence(now, before, told), (), by_steps=True), flight, True)

    def _evidence(self, now: float, before: tuple[float, Counters] | None, told: Counters) -> TokenEvidence | None:
        if before is None or told.itl_count <= before[1].itl_count:
            return None
        was = before[1]
        steps = told.iterations - was.iterations
        noise = math.exp(self._rng.gauss(0.0, self._scenario.noise)) if self._scenario.noise else 1.0
        return TokenEvidence(
            now,
            told.itl_count - was.itl_count,
            (told.itl_seconds - was.itl_seconds) * noise,
            (told.decode_tokens - was.decode_tokens) / steps,
            (told.prefill_tokens - was.prefill_tokens) / steps,
        )

    # ── The control loop ─────────────────────────────────────────────────────────────────────────────────────────────

    def _fleet(self, now: float) -> None:
        scenario = self._scenario
        replicas = tuple(
            Replica(name, Address(name, 1), member.capacity, gpu=member.gpu)
            for name, member in zip(self._names, scenario.members, strict=True)
            if member.joins <= now
        )
        telemetry = Telemetry(int(scenario.interval * 1000), stale_after=int(scenario.stale_after * 1000))
        pool = Pool(
            _POOL,
            replicas,
            weighting=scenario.weighting,
            telemetry=telemetry,
            slow_start=scenario.slow_start,
            deep=scenario.deep,
        )
        self._state, effects = step(self._state, FleetChanged(now, (pool,)))
        self._weights = {item.name: self._weights.get(item.name, plain(item.capacity)) for item in replicas}
        self._do(now, effects, changed=True)

    def _news(self, now: float, seen: dict[str, Seen]) -> None:
        self._state, effects = step(self._state, Looked(now, _POOL, seen))
        self._do(now, effects, changed=False)

    def _do(self, now: float, effects: Sequence[Effect], changed: bool) -> None:
        for effect in effects:
            match effect:
                case WeightsChanged():
                    self._weights = dict(effect.weights)
                case RampsChanged():
                    self._ramps = dict(effect.factors)
                case HealthChanged():
                    (self._out.add if effect.verdict == "out" else self._out.discard)(effect.replica)
        urgent = changed or any(isinstance(item, HealthChanged) for item in effects)
        if urgent or effects:
            self._push(now, urgent)

    def _push(self, now: float, urgent: bool = False) -> None:
        due = self._pushed_at + self._scenario.push_every
        if not urgent and now < due - 1e-9:
            if not self._push_waits:
                self._push_waits = True
                self._at(due, _PUSH, None)
            return
        self._pushed_at = now
        weights = tuple(self._weight(name) for name in self._names)
        told = self._kind.told(weights)
        if told != self._told:
            self._told = told
            self._history.append((now, tuple(item and item.rate for item in weights)))
            for proxy in self._proxies:
                proxy.follow(told)

    def _weight(self, name: str) -> Weight | None:
        """Envoy's own ramp is modelled by ours: its formula is the same."""
        if name in self._out or name not in self._weights:
            return None
        return self._weights[name].times(self._ramps.get(name, 1.0))


def _percentile(values: list[float], percentile: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percentile / 100))] if ordered else 0.0

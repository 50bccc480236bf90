"""Runs a scenario: arrivals, engines and proxies as chronological events, controlled by the real `control.step`."""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from lbctl.base.percentiles import percentile_of
from lbctl.control.effects import Effect, HealthChanged, ModeChanged, RemapAcceptanceChanged, WeightsChanged
from lbctl.control.events import FleetChanged, Observed
from lbctl.control.inputs import Observation, ProxyRequests
from lbctl.control.reload_patience import ReloadPatience
from lbctl.control.state import State
from lbctl.control.step import step
from lbctl.ir.address import Address
from lbctl.ir.pools import Pool, Replica, Telemetry
from lbctl.ir.weight import Weight, from_capacity
from lbctl.signals.derive import TokenEvidence
from lbctl.signals.merge import Signal, Signals
from lbctl.simulate.engine import Engine, EngineCounters, SimulatedRequest, saturated_rate
from lbctl.simulate.proxies import BALANCERS, Balancer
from lbctl.simulate.scenario import Scenario

_POOL = "pool"
_PROMPT, _PROMPT_SPREAD, _ANSWER, _ANSWER_SPREAD = 900.0, 0.7, 130.0, 0.9
"""Medians and spreads of lognormal lengths, from a public trace of conversations."""
_MEAN_PROMPT = _PROMPT * math.exp(_PROMPT_SPREAD**2 / 2)
_MEAN_ANSWER = _ANSWER * math.exp(_ANSWER_SPREAD**2 / 2)
_ARRIVAL, _ITERATION, _SCRAPE, _SAMPLES, _PUSH, _JOIN = range(6)


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The requests that arrived after the warm-up.

    Times are in seconds. For a client that has given up, its patience is used instead.
    """

    requests: tuple[SimulatedRequest, ...]
    history: tuple[tuple[float, tuple[float | None, ...]], ...]
    """(time, rate of each replica or None if ejected) at every change."""
    end: float
    """End of the run, in seconds."""
    patience: float
    """Seconds after which a client gives up."""

    def first_token(self, percentile: float = 99.0, since: float = 0.0) -> float:
        """Return a percentile of the time to first token."""
        return percentile_of(
            [self._first(request) for request in self.requests if request.arrived >= since], percentile
        )

    def per_token(self, percentile: float = 99.0, since: float = 0.0) -> float:
        """Return a percentile of the mean inter-token time of finished requests."""
        return percentile_of(
            [
                (request.last - request.first) / (request.answer - 1)
                for request in self.requests
                if request.last is not None
                and request.first is not None
                and request.answer > 1
                and request.arrived >= since
            ],
            percentile,
        )

    def failed(self) -> float:
        """Return the share of requests whose clients gave up."""
        return sum(request.left for request in self.requests) / max(1, len(self.requests))

    def share(self, replica: int, since: float = 0.0) -> float:
        """Return a replica's share of the requests."""
        requests = [request for request in self.requests if request.arrived >= since]
        return sum(request.replica == replica for request in requests) / max(1, len(requests))

    def weights(self, at: float) -> tuple[float | None, ...]:
        """Return the proxies' weights at a point in time."""
        return next(weights for time, weights in reversed(self.history) if time <= at)

    def _first(self, request: SimulatedRequest) -> float:
        return self.patience if request.left or request.first is None else request.first - request.arrived


def run(scenario: Scenario, seed: int) -> SimulationResult:
    """Run once. The same seed gives the same arrivals with any weighting."""
    return _Simulation(scenario, seed).go()


@dataclass(slots=True)
class _Loaded:
    """A proxy, with the weights that it uses."""

    offset: float
    """Seconds by which a reload for measured weights is delayed."""
    worker: int = -1
    """Index of the worker that takes the proxy's new requests."""
    weights: tuple[Weight | None, ...] = ()
    proxy_weights: Sequence[float | None] = ()
    at: float = -math.inf
    """The time at which the proxy last received weights, in seconds."""
    patience: ReloadPatience = field(default_factory=ReloadPatience)


class _Simulation:
    """The state of one run."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._scenario = scenario
        self._arrivals = random.Random(f"arrivals {seed}")
        self._rng = random.Random(f"rest {seed}")
        members = scenario.members
        self._engines = [Engine(member.speed, member.faults, member.curve) for member in members]
        self._kind = BALANCERS[scenario.algorithm]
        self._proxies: list[Balancer] = []
        """All workers of the proxies, including those replaced by a reload."""
        self._loaded = [_Loaded(place / scenario.proxies * scenario.push_every) for place in range(scenario.proxies)]
        for loaded in self._loaded:
            self._start(loaded)
        self._names = tuple(f"r{place}" for place in range(len(members)))
        self._rate = scenario.load * sum(
            saturated_rate(member.speed, _MEAN_PROMPT, _MEAN_ANSWER, member.curve)
            for member in members
            if not member.joins
        )
        self._before: list[tuple[float, EngineCounters] | None] = [None] * len(members)
        self._queue: list[tuple[float, int, int, object]] = []
        self._number = 0
        self._requests: list[SimulatedRequest] = []
        self._patient: deque[SimulatedRequest] = deque()
        self._state = State()
        self._weights: dict[str, Weight] = {}
        self._joined: dict[str, float] = {}
        self._ramps: dict[str, float] = {}
        self._out: set[str] = set()
        self._history: list[tuple[float, tuple[float | None, ...]]] = []
        self._push_due = math.inf
        """Time of the next pending weight change."""

    def go(self) -> SimulationResult:
        """Run all events and return the result."""
        scenario = self._scenario
        self._fleet(0.0)
        for place, member in enumerate(scenario.members):
            if member.joins:
                self._at(member.joins, _JOIN, place)
        self._at(self._arrivals.expovariate(self._rate), _ARRIVAL, None)
        self._at(scenario.interval, _SCRAPE, None)
        while self._queue and self._queue[0][0] < scenario.seconds:
            now, _, kind, argument = heapq.heappop(self._queue)
            self._leave(now)
            self._handle(now, kind, argument)
        counted = tuple(request for request in self._requests if request.arrived >= scenario.warm_up)
        self._leave(scenario.seconds)
        ended = tuple(request for request in counted if request.first is not None or request.left)
        return SimulationResult(ended, tuple(self._history), scenario.seconds, scenario.patience)

    def _at(self, time: float, kind: int, argument: object) -> None:
        self._number += 1
        heapq.heappush(self._queue, (time, self._number, kind, argument))

    def _handle(self, now: float, kind: int, argument: object) -> None:
        if kind == _ARRIVAL:
            self._arrive(now)
        elif kind == _ITERATION and isinstance(argument, int):
            self._iterate(now, argument)
        elif kind == _SCRAPE:
            self._scrape(now)
        elif kind == _SAMPLES and isinstance(argument, dict):
            self._observe(now, argument)
        elif kind == _PUSH:
            if now >= self._push_due:
                self._push_due = math.inf
                self._push(now)
        elif kind == _JOIN:
            self._fleet(now)

    # ── Requests ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _arrive(self, now: float) -> None:
        rng, burst = self._arrivals, self._scenario.burst
        for _ in range(1 if burst == 1 else max(1, round(rng.expovariate(1 / burst)))):
            prompt = min(8000, max(16, int(rng.lognormvariate(math.log(_PROMPT), _PROMPT_SPREAD))))
            answer = min(1000, max(2, int(rng.lognormvariate(math.log(_ANSWER), _ANSWER_SPREAD))))
            self._send(SimulatedRequest(now, prompt, answer, proxy=rng.randrange(self._scenario.proxies)))
        self._at(now + rng.expovariate(self._rate / burst), _ARRIVAL, None)

    def _send(self, request: SimulatedRequest) -> None:
        request.proxy = self._loaded[request.proxy].worker
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

    def _scrape(self, now: float) -> None:
        observations = {}
        for place, name in enumerate(self._names):
            if self._scenario.members[place].joins > now or self._rng.random() < self._scenario.loss:
                continue
            observations[name] = self._observation(now, place)
        self._at(now + self._scenario.delay, _SAMPLES, observations)
        self._at(now + self._scenario.interval, _SCRAPE, None)

    def _observation(self, now: float, place: int) -> Observation:
        counters = self._engines[place].counters
        before, self._before[place] = self._before[place], (now, replace(counters))
        values = {
            "progress": Signal(counters.iterations, now, 0),
            "running": Signal(counters.running, now, 0),
            "queue": Signal(counters.waiting, now, 0),
            "kv_cache": Signal(counters.usage, now, 0),
        }
        flight = None if self._kind.reloads else sum(proxy.active[place] for proxy in self._proxies)
        return Observation(
            now,
            Signals(values, {}, self._evidence(now, before, counters), (), by_steps=True),
            ProxyRequests(flight),
            True,
        )

    def _evidence(
        self, now: float, before: tuple[float, EngineCounters] | None, counters: EngineCounters
    ) -> TokenEvidence | None:
        if before is None or counters.itl_count <= before[1].itl_count:
            return None
        previous = before[1]
        steps = counters.iterations - previous.iterations
        noise = math.exp(self._rng.gauss(0.0, self._scenario.noise)) if self._scenario.noise else 1.0
        return TokenEvidence(
            now,
            counters.itl_count - previous.itl_count,
            (counters.itl_seconds - previous.itl_seconds) * noise,
            (counters.decode_tokens - previous.decode_tokens) / steps,
            (counters.prefill_tokens - previous.prefill_tokens) / steps,
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
        if self._weights:
            self._joined |= {replica.name: now for replica in replicas if replica.name not in self._weights}
        self._state, effects = step(self._state, FleetChanged(now, (pool,)))
        self._weights = {
            replica.name: self._weights.get(replica.name, from_capacity(replica.capacity)) for replica in replicas
        }
        self._apply(now, effects, changed=True)

    def _observe(self, now: float, observations: dict[str, Observation]) -> None:
        self._state, effects = step(self._state, Observed(now, _POOL, observations))
        self._apply(now, effects, changed=False)

    def _apply(self, now: float, effects: Sequence[Effect], changed: bool) -> None:
        for effect in effects:
            match effect:
                case WeightsChanged():
                    self._weights = dict(effect.weights)
                case HealthChanged():
                    (self._out.add if effect.verdict == "out" else self._out.discard)(effect.replica)
                case RemapAcceptanceChanged() | ModeChanged():
                    pass  # proxies do not get them
        ramps, self._ramps = self._ramps, self._factors(now)
        urgent = changed or any(isinstance(effect, HealthChanged) for effect in effects)
        if urgent or effects or ramps != self._ramps:
            self._push(now, urgent)

    def _push(self, now: float, urgent: bool = False) -> None:
        weights = tuple(self._weight(name) for name in self._names)
        dues = [self._load(loaded, weights, now, urgent) for loaded in self._loaded]
        due = min(dues)
        if due != self._push_due:
            self._push_due = due
            if due < math.inf:
                self._at(due, _PUSH, None)

    def _load(self, loaded: _Loaded, weights: tuple[Weight | None, ...], now: float, urgent: bool) -> float:
        """Load the weights into a proxy, or return the time at which they are due; infinity if nothing is due."""
        due = loaded.at + self._scenario.push_every
        if self._kind.reloads:
            pairs = zip(loaded.weights, weights, strict=False)
            loaded.patience = loaded.patience.observe(((old, new) for old, new in pairs if old and new), now)
            lasted = loaded.patience.due(self._scenario.push_every)
            due = due if lasted is None else max(due, lasted + loaded.offset)
        if not urgent and now < due - 1e-9:
            return due
        loaded.at, loaded.weights, loaded.patience = now, weights, ReloadPatience()
        proxy_weights = self._kind.proxy_weights(weights)
        if proxy_weights != loaded.proxy_weights:
            rates = tuple(weight and weight.rate for weight in weights)
            if not self._history or self._history[-1][1] != rates:
                self._history.append((now, rates))
            if self._kind.reloads and loaded.proxy_weights:
                self._start(loaded)
            loaded.proxy_weights = proxy_weights
            self._proxies[loaded.worker].use_weights(proxy_weights)
        return math.inf

    def _start(self, loaded: _Loaded) -> None:
        loaded.worker = len(self._proxies)
        self._proxies.append(self._kind.make(len(self._scenario.members), self._rng))

    def _factors(self, now: float) -> dict[str, float]:
        """Map replicas below full weight to the proxies' own slow-start factor, by Envoy's formula."""
        rules = self._scenario.slow_start
        if rules is None:
            return {}
        factors = {name: rules.factor(now - joined) for name, joined in self._joined.items()}
        return {name: value for name, value in factors.items() if value < 1.0}

    def _weight(self, name: str) -> Weight | None:
        """Return the weight that the proxies use for the replica; None if it gets no requests."""
        if name in self._out or name not in self._weights:
            return None
        return self._weights[name].times(self._ramps.get(name, 1.0))

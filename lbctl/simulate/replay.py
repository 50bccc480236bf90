"""Replays a trace against one pool of a fleet, for one policy: requests, engines, proxies and the control loop."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lbctl.control.inputs import Observation
from lbctl.ir.pools import Pool
from lbctl.ir.weight import Weight
from lbctl.simulate import choosers, columns
from lbctl.simulate.compiled import counts, floats, integers, zeros
from lbctl.simulate.control import DELAY, ControlLoop
from lbctl.simulate.engine import CostModel
from lbctl.simulate.kernel import advance, change_speed, place
from lbctl.simulate.picking import SimulatedPicker
from lbctl.simulate.policies import Policy
from lbctl.simulate.trace import Trace

_WAYS = 8
_GRACE = 600.0
"""Seconds after the last arrival in which answers may end."""
_CHUNK = 30.0
"""Simulated seconds between two reports of the progress."""
_WARM_UP = 60.0
"""Seconds before the next request from which on a fleet that does nothing is sampled again."""


@dataclass(frozen=True, slots=True)
class SpeedChange:
    """A change of a replica's speed."""

    at: float
    """Seconds since the first request."""
    replica: str
    """The name of the replica."""
    factor: float
    """Multiplies its speed from then on; 0: it stands still."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a trace is replayed against."""

    pool: Pool
    """The pool of the fleet; its capacities, telemetry and weighting apply."""
    policy: Policy
    """How the proxies choose."""
    costs: tuple[CostModel, ...]
    """The engine of each replica, at its real speed."""
    proxies: int = 2
    """How many proxies share the load; each knows only its own requests."""
    patience: float = 60.0
    """Seconds after which a client without a first token leaves."""
    changes: tuple[SpeedChange, ...] = ()
    """Changes of speed, in the order of time."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The columns at the end of a run."""

    setup: Setup
    """What was run."""
    requests: columns.Requests
    """The requests."""
    engines: columns.Engines
    """The engines."""
    end: float
    """When the last answer ended, in seconds."""


def replay(setup: Setup, trace: Trace, seed: int, progress: Callable[[float], None] | None = None) -> Replay:
    """Run once. The same seed gives the same result. `progress` gets the part of the trace that has arrived."""
    run = _Run(setup, trace, random.Random(seed))
    run.go(progress)
    return Replay(setup, run.requests, run.engines, run.now)


class _Run:
    """The state of one run."""

    def __init__(self, setup: Setup, trace: Trace, rng: random.Random) -> None:
        self._setup = setup
        self._rng = rng
        pool = setup.pool
        self._last = trace.times[-1]
        self._loop = ControlLoop(pool)
        self._convert = setup.policy.convert(pool)
        self._chooser = setup.policy.chooser(pool)
        slots = max(cost.sequences for cost in setup.costs)
        largest = max(cost.cache for cost in setup.costs)
        self.settings = columns.Settings(
            len(pool.replicas),
            2048,
            slots,
            setup.patience,
            self._chooser,
            float(pool.balance.bounded_load or 0.0) if setup.policy.bounds_load else 0.0,
            trace.block,
            max(1, largest // (_WAYS * trace.block)) if trace.block else 1,
        )
        self.requests = _requests(trace, setup.proxies, rng)
        self.engines = _engines(setup.costs, self.settings)
        self._proxies = _proxies(pool, setup, rng)
        self._progress = columns.Progress(*(counts(1) for _ in range(6)))
        self._pushed: list[float] = []
        self._pushed_at = -math.inf
        self._picker = (
            SimulatedPicker(pool, trace, rng, reads_prompts=setup.policy.reads_prompts)
            if self._chooser == choosers.PICKED
            else None
        )
        self._noted = 0
        self.now = 0.0

    def go(self, progress: Callable[[float], None] | None) -> None:
        """Run until every request has its answer, or its client has left."""
        self._push(0.0)
        events = _Agenda(self._loop.interval, self._setup.changes)
        while not self._is_over(events):
            arrival = self._next_arrival()
            if self._is_at_rest() and arrival != math.inf:
                events.skip_samples(arrival - _WARM_UP)
            time = min(events.next_time(), max(self.now + _CHUNK, min(arrival, self._last + _GRACE)))
            self._advance(time)
            for change in events.changes_at(time):
                self._change(change)
            if events.is_sample_due(time):
                events.sampled(self._loop.sample(self.engines, self._active(), time))
            if samples := events.samples_at(time):
                self._loop.observe(samples, time)
            self._push(time)
            if progress is not None:
                progress(min(1.0, time / self._last) if self._last else 1.0)

    def _next_arrival(self) -> float:
        """Return when the next request arrives; infinite: there is none."""
        arrival = int(self._progress.arrival[0])
        return float(self.requests.arrived[arrival]) if arrival < len(self.requests.arrived) else math.inf

    def _is_at_rest(self) -> bool:
        """Return whether no engine works and no client waits."""
        return bool(
            self._progress.leaving[0] == self._progress.arrival[0]
            and self.engines.end[self.engines.heap[0]] == math.inf
        )

    def _advance(self, until: float) -> None:
        while True:
            advance(self.requests, self.engines, self._proxies, self.settings, self._progress, until)
            request = int(self._progress.arrival[0])
            is_last = request == len(self.requests.arrived)
            if self._picker is None or is_last or self.requests.arrived[request] > until:
                break
            self._pick(self._picker, request)
        self.now = until

    def _pick(self, picker: SimulatedPicker, request: int) -> None:
        for entry in self.requests.log[self._noted : self._progress.logged[0]]:
            (picker.finished if entry & 1 else picker.first_token)(int(entry) >> 1)
        self._noted = int(self._progress.logged[0])
        replica = picker.choose(request, float(self.requests.arrived[request]))
        place(self.requests, self.engines, self._proxies, self.settings, self._progress, request, replica)

    def _is_over(self, events: _Agenda) -> bool:
        if self._progress.arrival[0] < len(self.requests.arrived):
            return False
        if self.now > self._last + _GRACE:
            return True
        is_busy = any(end != math.inf for end in self.engines.end)
        is_awaited = (
            self._progress.leaving[0] < len(self.requests.arrived) and self.now <= self._last + self._setup.patience
        )
        return not (is_busy or is_awaited or events.has_changes)

    def _change(self, change: SpeedChange) -> None:
        names = [replica.name for replica in self._setup.pool.replicas]
        replica = names.index(change.replica)
        change_speed(
            self.requests, self.engines, self.settings, self._progress, replica, float(change.factor), float(change.at)
        )

    def _active(self) -> list[int]:
        size = self.settings.replicas
        active = self._proxies.active
        return [sum(int(active[at]) for at in range(replica, len(active), size)) for replica in range(size)]

    def _push(self, now: float) -> None:
        """Give the proxies the weights, where they have changed and may be sent."""
        if now < self._pushed_at + self._setup.policy.push_every:
            return
        weights = _proxy_weights(self._convert, self._loop.weights())
        if weights == self._pushed:
            return
        self._pushed, self._pushed_at = weights, now
        if self._picker is not None:
            self._picker.follow(self._loop.weights())
        proxies, size = self._proxies, self.settings.replicas
        for replica, weight in enumerate(weights):
            proxies.weight[replica] = weight
        for at in range(len(proxies.due)):
            weight = weights[at % size]
            proxies.due[at] = proxies.now[at // size] + self._rng.random() / weight if weight > 0 else math.inf
            proxies.current[at] = self._rng.random()


def _proxy_weights(convert: Callable[[Sequence[Weight]], Sequence[float]], weights: list[Weight | None]) -> list[float]:
    converted = iter(convert([weight for weight in weights if weight is not None]))
    return [-1.0 if weight is None else next(converted) for weight in weights]


class _Agenda:
    """When the speed changes, when samples are taken, and when they arrive."""

    def __init__(self, interval: float | None, changes: Sequence[SpeedChange]) -> None:
        self._interval = interval
        self._changes = sorted(changes, key=lambda change: change.at, reverse=True)
        self._next_sample = interval if interval is not None else math.inf
        self._arriving: list[tuple[float, dict[str, Observation]]] = []

    @property
    def has_changes(self) -> bool:
        """Whether a speed is still to change."""
        return bool(self._changes)

    def next_time(self) -> float:
        """Return when the next of them happens; infinite: never."""
        change = self._changes[-1].at if self._changes else math.inf
        arrival = self._arriving[0][0] if self._arriving else math.inf
        return min(change, self._next_sample, arrival)

    def changes_at(self, now: float) -> list[SpeedChange]:
        """Remove and return the changes of speed that are due."""
        due = []
        while self._changes and self._changes[-1].at <= now:
            due.append(self._changes.pop())
        return due

    def skip_samples(self, until: float) -> None:
        """Leave out the samples before a time."""
        if self._interval is not None and self._next_sample < until:
            self._next_sample += self._interval * math.ceil((until - self._next_sample) / self._interval)

    def is_sample_due(self, now: float) -> bool:
        """Return whether the engines are to be sampled now."""
        return self._next_sample <= now

    def sampled(self, samples: dict[str, Observation]) -> None:
        """Keep the samples that were just taken until they arrive."""
        assert self._interval is not None
        self._arriving.append((self._next_sample + DELAY, samples))
        self._next_sample += self._interval

    def samples_at(self, now: float) -> dict[str, Observation] | None:
        """Remove and return the samples that arrive now."""
        if self._arriving and self._arriving[0][0] <= now:
            return self._arriving.pop(0)[1]
        return None


def _requests(trace: Trace, proxies: int, rng: random.Random) -> columns.Requests:
    count = len(trace.times)
    lengths = [len(blocks) for blocks in trace.blocks] or [0] * count
    starts = [0] * count
    for index in range(1, count):
        starts[index] = starts[index - 1] + lengths[index - 1]
    keys = trace.keys or [rng.getrandbits(32) for _ in range(count)]
    return columns.Requests(
        arrived=floats(trace.times),
        prompt=integers(trace.prompts),
        answer=integers(trace.answers),
        proxy=integers(rng.randrange(proxies) for _ in range(count)),
        key=integers(keys),
        draw=floats(rng.random() for _ in range(count)),
        second_draw=floats(rng.random() for _ in range(count)),
        block_start=integers(starts),
        block_count=integers(lengths),
        blocks=integers([block for blocks in trace.blocks for block in blocks] or [0]),
        replica=counts(count, -1),
        first=floats([-1.0] * count),
        last=floats([-1.0] * count),
        state=counts(count),
        hit=counts(count),
        need=integers(trace.prompts),
        rest=integers(trace.answers),
        follower=counts(count, -1),
        admitted=counts(count),
        log=counts(2 * count),
    )


def _engines(costs: Sequence[CostModel], settings: columns.Settings) -> columns.Engines:
    size, slots = len(costs), settings.slots
    cache_slots = size * settings.cache_sets * _WAYS if settings.block else 1
    numbers = {
        "a": floats(cost.a for cost in costs),
        "b": floats(cost.b for cost in costs),
        "c": floats(cost.c for cost in costs),
        "p": floats(cost.p for cost in costs),
        "sequences": integers(cost.sequences for cost in costs),
        "cache": integers(cost.cache for cost in costs),
        "factor": floats([1.0] * size),
        "end": floats([math.inf] * size),
        "heap": integers(range(size)),
        "place": integers(range(size)),
        "cached_block": counts(cache_slots, -1),
        "cached_at": counts(cache_slots),
    }
    wide = ("run_request", "run_done", "read_request", "read_left")
    seconds = ("begun", "itl_seconds", "busy_seconds")
    for name in columns.Engines._fields:
        if name not in numbers:
            length = size * slots if name in wide else size
            numbers[name] = zeros(length) if name in seconds else counts(length)
    return columns.Engines(**numbers)


def _proxies(pool: Pool, setup: Setup, rng: random.Random) -> columns.Proxies:
    size = len(pool.replicas)
    pairs = size * setup.proxies
    points = setup.policy.lookup(pool)
    return columns.Proxies(
        active=counts(pairs),
        weight=zeros(size),
        current=floats(rng.random() for _ in range(pairs)),
        due=zeros(pairs),
        now=zeros(setup.proxies),
        turn=counts(pairs),
        ring_point=integers(point for point, _ in points),
        ring_replica=integers(replica for _, replica in points),
    )

"""The weights law of `serve` in these simulations: reports of engines in, weights and health out."""

from __future__ import annotations

from collections.abc import Sequence

from lbctl.control.effects import HealthChanged, WeightsChanged
from lbctl.control.events import FleetChanged, Observed
from lbctl.control.inputs import Observation, ProxyRequests
from lbctl.control.state import State
from lbctl.control.step import step
from lbctl.ir.address import Address
from lbctl.ir.pools import Balance, DeepCheck, PickPolicy, Pool, Replica, Telemetry, Weighting
from lbctl.ir.weight import Weight, from_capacity
from lbctl.signals import table
from lbctl.signals.derive import derive
from lbctl.signals.merge import Signal, Signals
from lbctl.signals.source import SourceReading
from lbctl.simulate.engine import EngineCounters
from lbctl.simulate.scenario import SimulatedReplica

_POOL = "pool"


class Control:
    """Adaptive weights and deep health of one pool."""

    def __init__(self, members: Sequence[SimulatedReplica], interval: float, *, is_picked: bool) -> None:
        replicas = tuple(
            Replica(str(place), Address(str(place), 1), item.capacity, gpu=item.gpu)
            for place, item in enumerate(members)
        )
        self._pool = Pool(
            _POOL,
            replicas,
            balance=Balance(pick=PickPolicy(()) if is_picked else None),
            weighting=Weighting(strategy="adaptive"),
            telemetry=Telemetry(int(interval * 1000), stale_after=15_000),
            deep=DeepCheck(),
        )
        self._weights = {item.name: from_capacity(item.capacity) for item in replicas}
        self._out: set[str] = set()
        self.start(0.0)

    def start(self, now: float) -> None:
        """Start, or restart with the last weights and without any earlier reports."""
        self._state, _ = step(State(), FleetChanged(now, (self._pool,), {_POOL: self._weights}))
        self._before: dict[str, SourceReading] = {}

    def observe(
        self, reports: Sequence[tuple[float, EngineCounters]], in_flight: Sequence[int], now: float
    ) -> list[Weight | None]:
        """Return the weight of each replica after these reports, each with its time. None means no requests."""
        samples = {
            str(place): self._observation(str(place), counters, in_flight[place], taken)
            for place, (taken, counters) in enumerate(reports)
        }
        self._state, effects = step(self._state, Observed(now, _POOL, samples))
        for effect in effects:
            if isinstance(effect, WeightsChanged):
                self._weights = dict(effect.weights)
            elif isinstance(effect, HealthChanged):
                (self._out.add if effect.verdict == "out" else self._out.discard)(effect.replica)
        return [None if name in self._out else self._weights[name] for name in samples]

    def _observation(self, name: str, counters: EngineCounters, in_flight: int, taken: float) -> Observation:
        reading = _reading(counters, taken)
        before, self._before[name] = self._before.get(name), reading
        values = {
            "progress": Signal(counters.iterations, taken, 0),
            "running": Signal(counters.running, taken, 0),
            "queue": Signal(counters.waiting, taken, 0),
            "kv_cache": Signal(min(1.0, counters.usage), taken, 0),
        }
        signals = Signals(values, {}, derive(table("vllm"), before, reading).evidence, (), by_steps=True)
        return Observation(taken, signals, ProxyRequests(in_flight), True)


def _reading(counters: EngineCounters, taken: float) -> SourceReading:
    """Return the counters of vLLM, whose prompt tokens include the cached ones."""
    return SourceReading(
        taken,
        {
            "iterations": counters.iterations,
            "prefill_tokens": counters.prefill_tokens + counters.cached_tokens,
            "cache_found": counters.cached_tokens,
            "decode_tokens": counters.decode_tokens,
            "itl_count": counters.itl_count,
            "itl_seconds": counters.itl_seconds,
        },
    )

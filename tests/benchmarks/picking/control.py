"""The weights law of `serve` in these simulations: reports of engines in, weights and health out."""

from __future__ import annotations

from collections.abc import Sequence

from lbctl.control.effects import HealthChanged, WeightsChanged
from lbctl.control.events import FleetChanged, Observed
from lbctl.control.inputs import Observation
from lbctl.control.state import State
from lbctl.control.step import step
from lbctl.ir.address import Address
from lbctl.ir.pools import DeepCheck, Pool, Replica, Telemetry, Weighting
from lbctl.ir.weight import Weight, from_capacity
from lbctl.signals.derive import TokenEvidence
from lbctl.signals.merge import Signal, Signals
from lbctl.simulate.engine import EngineCounters
from lbctl.simulate.scenario import SimulatedReplica

_POOL = "pool"


class Control:
    """Adaptive weights and deep health of one pool."""

    def __init__(self, members: Sequence[SimulatedReplica], interval: float) -> None:
        replicas = tuple(
            Replica(str(place), Address(str(place), 1), item.capacity, gpu=item.gpu)
            for place, item in enumerate(members)
        )
        telemetry = Telemetry(int(interval * 1000), stale_after=15_000)
        pool = Pool(_POOL, replicas, weighting=Weighting(strategy="adaptive"), telemetry=telemetry, deep=DeepCheck())
        self._state, _ = step(State(), FleetChanged(0.0, (pool,)))
        self._weights = {item.name: from_capacity(item.capacity) for item in replicas}
        self._out: set[str] = set()
        self._before: dict[str, EngineCounters] = {}

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
        before, self._before[name] = self._before.get(name), counters
        values = {
            "progress": Signal(counters.iterations, taken, 0),
            "running": Signal(counters.running, taken, 0),
            "queue": Signal(counters.waiting, taken, 0),
        }
        signals = Signals(values, {}, _evidence(before, counters, taken), (), by_steps=True)
        return Observation(taken, signals, in_flight, True)


def _evidence(before: EngineCounters | None, counters: EngineCounters, now: float) -> TokenEvidence | None:
    if before is None or counters.itl_count <= before.itl_count:
        return None
    steps = counters.iterations - before.iterations
    return TokenEvidence(
        now,
        counters.itl_count - before.itl_count,
        counters.itl_seconds - before.itl_seconds,
        (counters.decode_tokens - before.decode_tokens) / steps,
        (counters.prefill_tokens - before.prefill_tokens) / steps,
    )

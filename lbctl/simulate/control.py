"""The control loop of `serve` in a simulation: converts engine samples to weights using the real `control.step`.

Samples are taken at the telemetry interval and arrive with a delay. Weights reach the proxies immediately, or at the
minimum interval between reloads.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from lbctl.control.effects import HealthChanged, WeightsChanged
from lbctl.control.events import Event, FleetChanged, Observed
from lbctl.control.inputs import Observation, ProxyRequests
from lbctl.control.state import State
from lbctl.control.step import step
from lbctl.ir.pools import Pool
from lbctl.ir.weight import Weight, from_capacity
from lbctl.signals.derive import TokenEvidence
from lbctl.signals.merge import Signal, Signals
from lbctl.simulate import engines as engine_functions
from lbctl.simulate.state import DECODE, EngineColumns


class EngineReport(NamedTuple):
    """The metrics that the picker uses to recognise a full engine."""

    running: float
    """Number of requests that the engine is running."""
    waiting: float
    """Number of requests waiting in the engine."""
    kv: float
    """Used share of its KV cache (0…1)."""


class SimulatedControlLoop:
    """Decides the weights of one pool. `later`: replicas that join during the run."""

    def __init__(self, pool: Pool, later: Collection[str] = ()) -> None:
        self._pool = pool
        self._names = [replica.name for replica in pool.replicas]
        self._later = set(later)
        self._state, _ = step(State(), FleetChanged(0.0, (self._present(),)))
        self._weights = {replica.name: from_capacity(replica.capacity) for replica in pool.replicas}
        self._out: set[str] = set()
        self._drained = {replica.name for replica in pool.replicas if replica.drain}
        self._before: dict[str, tuple[float, ...]] = {}

    @property
    def interval(self) -> float | None:
        """Seconds between samples; None if the pool has no telemetry."""
        return self._pool.telemetry.interval / 1000 if self._pool.telemetry else None

    def weights(self) -> list[Weight | None]:
        """Return each replica's weight; None for a replica that does not get requests."""
        unfit = self._out | self._drained
        return [None if name in unfit else self._weights[name] for name in self._names]

    def join(self, name: str, now: float) -> None:
        """Add a replica to the pool."""
        self._later.discard(name)
        self._decide(FleetChanged(now, (self._present(),)))

    def _present(self) -> Pool:
        return replace(self._pool, replicas=tuple(item for item in self._pool.replicas if item.name not in self._later))

    def sample(self, engines: EngineColumns, active: Sequence[int], now: float) -> dict[str, Observation]:
        """Return the current metrics of all engines that are not dead.

        `active`: each replica's requests in flight, as counted by proxies.
        """
        return {
            name: self._observation(name, _counters(engines, replica, now), int(active[replica]), now)
            for replica, name in enumerate(self._names)
            if engines.up[replica] and name not in self._later
        }

    def reports(self, engines: EngineColumns, now: float) -> dict[str, EngineReport]:
        """Return the current reports to the picker from all engines that are not dead."""
        reports = {}
        for replica, name in enumerate(self._names):
            if engines.up[replica] and name not in self._later:
                *_, running, waiting = _counters(engines, replica, now)
                kv = float(engines.context[replica]) / float(engines.cache[replica])
                reports[name] = EngineReport(running, waiting, kv)
        return reports

    def observe(self, observations: dict[str, Observation], ejected: Collection[str], now: float) -> None:
        """Make a decision based on these samples. `ejected`: replicas ejected by active health checks."""
        self._decide(Observed(now, self._pool.name, observations, frozenset(ejected)))

    def _decide(self, event: Event) -> None:
        self._state, effects = step(self._state, event)
        for effect in effects:
            if isinstance(effect, WeightsChanged):
                self._weights |= effect.weights
            elif isinstance(effect, HealthChanged):
                (self._out.add if effect.verdict == "out" else self._out.discard)(effect.replica)

    def _observation(self, name: str, counters: tuple[float, ...], active: int, now: float) -> Observation:
        steps, *_, running, waiting = counters
        before, self._before[name] = self._before.get(name), counters
        values = {
            "progress": Signal(steps, now, 0),
            "running": Signal(running, now, 0),
            "queue": Signal(waiting, now, 0),
        }
        return Observation(
            now, Signals(values, {}, _evidence(before, counters, now), (), by_steps=True), ProxyRequests(active), True
        )


def _counters(engines: EngineColumns, replica: int, now: float) -> tuple[float, ...]:
    """Return (iterations, prompt tokens, generated tokens, Σ seconds and number of inter-token times, running, queue).

    During a run of several iterations, only completed iterations count.
    """
    running = int(engines.running[replica])
    done, seconds = 0, 0.0
    if engines.kind[replica] == DECODE and now > engines.begun[replica]:
        done = engine_functions.iterations_until(engines, replica, now) - 1
        seconds = engine_functions.duration(engines, replica, done, 0) if done else 0.0
    return (
        float(engines.step[replica] + done),
        float(engines.prefill_tokens[replica]),
        float(engines.decode_tokens[replica] + running * done),
        float(engines.itl_seconds[replica] + running * seconds),
        float(engines.itl_count[replica] + running * done),
        float(running + engines.reading[replica]),
        float(engines.waiting[replica] - engines.left[replica]),
    )


def _evidence(before: tuple[float, ...] | None, counters: tuple[float, ...], now: float) -> TokenEvidence | None:
    if before is None or counters[4] <= before[4]:
        return None
    steps, prompt, generated, seconds, count = (new - old for new, old in zip(counters[:5], before[:5], strict=True))
    return TokenEvidence(now, count, seconds, generated / steps, prompt / steps)

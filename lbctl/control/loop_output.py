"""The control loop's decisions for the proxies. It contains only differences from the fleet files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from lbctl.control.effects import Effect, HealthChanged, ModeChanged, WeightsChanged
from lbctl.ir.pools import Pool
from lbctl.ir.topology import Topology
from lbctl.ir.weight import Weight

_V = TypeVar("_V")
_ByPool = Mapping[str, Mapping[str, _V]]
Reasons = Mapping[str, tuple[str, ...]]
"""Replica → why it is ejected, for people."""


@dataclass(frozen=True, slots=True)
class LoopOutput:
    """Weights, ejections and sleeping replicas by pool."""

    weights: Mapping[str, Mapping[str, Weight]] = field(default_factory=dict)
    """Pool → replica → weight; pools at their capacities are absent."""
    ejections: Mapping[str, Reasons] = field(default_factory=dict)
    """Pool → replica → why deep health has ejected it."""

    asleep: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Pool → the replicas whose engines are asleep."""

    @property
    def out(self) -> dict[str, frozenset[str]]:
        """Pool → the replicas that get no requests: deep health has ejected them, or their engines are asleep."""
        out = {pool: frozenset(replicas) for pool, replicas in self.ejections.items()}
        return out | {pool: out.get(pool, frozenset()) | replicas for pool, replicas in self.asleep.items()}

    def within(self, topology: Topology) -> LoopOutput:
        """Return the part for the fleet's controlled pools and their replicas."""
        replicas = {pool.name: frozenset(item.name for item in pool.replicas) for pool in controlled(topology)}
        asleep = {pool: names & replicas[pool] for pool, names in self.asleep.items() if pool in replicas}
        return LoopOutput(
            _within(self.weights, replicas),
            _within(self.ejections, replicas),
            {pool: names for pool, names in asleep.items() if names},
        )

    def after(self, effects: Sequence[Effect]) -> LoopOutput:
        """Return the output with these effects applied, in their order."""
        if not effects:
            return self
        weights = dict(self.weights)
        ejections: dict[str, dict[str, tuple[str, ...]]] = {}
        asleep = dict(self.asleep)
        for effect in effects:
            match effect:
                case WeightsChanged():
                    weights[effect.pool] = {} if effect.at_capacity else effect.weights
                case HealthChanged():
                    pool = ejections.setdefault(effect.pool, dict(self.ejections.get(effect.pool, {})))
                    if effect.verdict == "out":
                        pool[effect.replica] = effect.reasons
                    else:
                        pool.pop(effect.replica, None)
                    sleeping, names = asleep.get(effect.pool, frozenset()), frozenset({effect.replica})
                    asleep[effect.pool] = sleeping | names if effect.verdict == "asleep" else sleeping - names
                case ModeChanged():
                    pass  # proxies get no mode
        return LoopOutput(
            _without_empty(weights),
            _without_empty({**self.ejections, **ejections}),
            {pool: names for pool, names in asleep.items() if names},
        )


def controlled(topology: Topology) -> tuple[Pool, ...]:
    """The pools with telemetry; the others use their capacities."""
    return tuple(
        pool
        for pool in topology.pools
        if (pool.telemetry and pool.telemetry.sources) or any(item.telemetry for item in pool.replicas)
    )


def shortest_interval(topology: Topology) -> float | None:
    """Return the shortest telemetry interval of the controlled pools in seconds; None if no pool has telemetry."""
    pools = controlled(topology)
    telemetry = [pool.telemetry for pool in pools] + [item.telemetry for pool in pools for item in pool.replicas]
    return min((item.interval / 1000 for item in telemetry if item is not None), default=None)


def _within(values: _ByPool[_V], replicas: Mapping[str, frozenset[str]]) -> _ByPool[_V]:
    kept = {
        pool: {name: value for name, value in by_replica.items() if name in replicas[pool]}
        for pool, by_replica in values.items()
        if pool in replicas
    }
    return _without_empty(kept)


def _without_empty(values: _ByPool[_V]) -> _ByPool[_V]:
    return {pool: by_replica for pool, by_replica in values.items() if by_replica}

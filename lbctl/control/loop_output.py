"""The control loop's decisions for the proxies. The output contains only differences from the fleet files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from lbctl.control.effects import Effect, HealthChanged, ModeChanged, RemapAcceptanceChanged, WeightsChanged
from lbctl.ir.pools import Pool
from lbctl.ir.topology import Topology
from lbctl.ir.weight import Weight

_V = TypeVar("_V")
_ByPool = Mapping[str, Mapping[str, _V]]
Reasons = Mapping[str, tuple[str, ...]]
"""Maps each replica to the human-readable reason for its ejection."""


@dataclass(frozen=True, slots=True)
class LoopOutput:
    """Weights, ejections, sleeping replicas and accepted failures, by pool."""

    weights: Mapping[str, Mapping[str, Weight]] = field(default_factory=dict)
    """Maps each pool and replica to its weight. Pools whose weights equal the capacities are omitted."""
    ejections: Mapping[str, Reasons] = field(default_factory=dict)
    """Maps each pool and replica to the reason why the deep health check has ejected it."""
    asleep: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Maps each pool to the replicas whose engines are asleep."""
    accepted_remaps: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Maps each pool to the replicas whose failed row remap an operator has accepted. The proxies do not need this
    information, but it is needed after a restart."""

    @property
    def out(self) -> dict[str, frozenset[str]]:
        """The replicas in each pool that get no requests because deep health has ejected them or they are asleep."""
        out = {pool: frozenset(replicas) for pool, replicas in self.ejections.items()}
        return out | {pool: out.get(pool, frozenset()) | replicas for pool, replicas in self.asleep.items()}

    def within(self, topology: Topology) -> LoopOutput:
        """Return the part that applies to the fleet's controlled pools and their replicas."""
        replicas = {pool.name: frozenset(item.name for item in pool.replicas) for pool in controlled(topology)}
        return LoopOutput(
            _within(self.weights, replicas),
            _within(self.ejections, replicas),
            _names_within(self.asleep, replicas),
            _names_within(self.accepted_remaps, replicas),
        )

    def after(self, effects: Sequence[Effect]) -> LoopOutput:
        """Return the output with these effects applied in order."""
        if not effects:
            return self
        weights = dict(self.weights)
        ejections: dict[str, dict[str, tuple[str, ...]]] = {}
        asleep, accepted_remaps = dict(self.asleep), dict(self.accepted_remaps)
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
                    _set_member(asleep, effect.pool, effect.replica, effect.verdict == "asleep")
                case RemapAcceptanceChanged():
                    _set_member(accepted_remaps, effect.pool, effect.replica, effect.accepted)
                case ModeChanged():
                    pass  # proxies do not get the mode
        return LoopOutput(
            _without_empty(weights),
            _without_empty({**self.ejections, **ejections}),
            {pool: names for pool, names in asleep.items() if names},
            {pool: names for pool, names in accepted_remaps.items() if names},
        )


def controlled(topology: Topology) -> tuple[Pool, ...]:
    """The pools with telemetry. All other pools use their capacities."""
    return tuple(
        pool
        for pool in topology.pools
        if (pool.telemetry and pool.telemetry.sources) or any(item.telemetry for item in pool.replicas)
    )


def shortest_interval(topology: Topology) -> float | None:
    """Return the shortest telemetry interval of the controlled pools, in seconds, or None if no pool has telemetry."""
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


def _names_within(
    names: Mapping[str, frozenset[str]], replicas: Mapping[str, frozenset[str]]
) -> dict[str, frozenset[str]]:
    return {pool: kept for pool, each in names.items() if (kept := each & replicas.get(pool, frozenset()))}


def _set_member(names: dict[str, frozenset[str]], pool: str, replica: str, is_member: bool) -> None:
    before = names.get(pool, frozenset())
    names[pool] = before | {replica} if is_member else before - {replica}


def _without_empty(values: _ByPool[_V]) -> _ByPool[_V]:
    return {pool: by_replica for pool, by_replica in values.items() if by_replica}

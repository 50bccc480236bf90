"""What the control loop has decided, as the proxies are to have it. It holds only what differs from the files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from lbctl.control.state import PoolState, weights
from lbctl.control.weighting.strategy import WHOLE
from lbctl.ir.pools import Pool
from lbctl.ir.topology import Topology
from lbctl.ir.weight import Weight

_V = TypeVar("_V")
Reasons = Mapping[str, tuple[str, ...]]
"""Replica → why it is out, in words."""


@dataclass(frozen=True, slots=True)
class Live:
    """By pool. `weights`: replica → weight; `out`: who deep health has taken out."""

    weights: Mapping[str, Mapping[str, Weight]] = field(default_factory=dict)
    out: Mapping[str, Reasons] = field(default_factory=dict)

    @property
    def gone(self) -> dict[str, frozenset[str]]:
        """`out`, as a snapshot has it."""
        return {pool: frozenset(found) for pool, found in self.out.items()}

    def within(self, topology: Topology) -> Live:
        """What of it is about this fleet: pools that are watched, and replicas that they have."""
        there = {pool.name: frozenset(item.name for item in pool.replicas) for pool in controlled(topology)}
        return Live(_kept(self.weights, there), _kept(self.out, there))

    def with_pool(self, state: PoolState) -> Live:
        """With what the loop now has decided for one pool."""
        name = state.pool.name
        moved = any(item.course.sent != 1.0 or item.course.sent_parts != WHOLE for item in state.tracks)
        out = {item.replica.name: item.health.words for item in state.tracks if item.health.phase == "out"}
        return Live(_set(self.weights, name, weights(state) if moved else {}), _set(self.out, name, out))


def controlled(topology: Topology) -> tuple[Pool, ...]:
    """The pools that tell something of themselves; the others run on their capacities."""
    return tuple(
        pool
        for pool in topology.pools
        if (pool.telemetry and pool.telemetry.sources) or any(item.telemetry for item in pool.replicas)
    )


def _kept(values: Mapping[str, Mapping[str, _V]], there: Mapping[str, frozenset[str]]) -> dict[str, dict[str, _V]]:
    found = {
        pool: {name: value for name, value in each.items() if name in there[pool]}
        for pool, each in values.items()
        if pool in there
    }
    return {pool: each for pool, each in found.items() if each}


def _set(values: Mapping[str, Mapping[str, _V]], pool: str, now: Mapping[str, _V]) -> dict[str, Mapping[str, _V]]:
    found = {**values, pool: now}
    if not now:
        del found[pool]
    return found

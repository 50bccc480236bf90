"""Slow start for nginx, which lacks it. A new replica's weight rises in a few steps, each of which requires a reload.

Envoy and HAProxy have their own slow start and must not apply a second ramp, so a ramp is never part of the weights
that the control loop decides. The formula is the same as Envoy's, evaluated at the beginning of each step, so that a
replica never gets more than it would with Envoy. (`compose` increases the factors if too little of a pool's capacity
would be in use.) The length of a step is the proxy's `min_interval`, or an eighth of the window if that is longer. With
the defaults (60 s, 10 %, 30 s), a replica starts with 10 % of its weight, and reaches 50 % after 30 s and 100 % after
60 s.

The picker uses the same ramps. As in Envoy and HAProxy, a replica ramps if it is new or if its checks have failed, but
not after a drain. The functions are pure. Times are arguments, in seconds on a single clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lbctl.ir.address import Address
from lbctl.ir.pools import Pool, SlowStart
from lbctl.ir.snapshot import Snapshot, drained_of
from lbctl.ir.topology import Topology

_MAX_STEPS = 8
Key = tuple[str, str, Address]
"""Pool, replica and its address. A replica with a different address is a different replica."""
Factors = Mapping[str, Mapping[str, float]]
"""Maps each pool and replica to its weight factor below 1. Replicas that have finished ramping are omitted."""


def step(rules: SlowStart, min_interval: float) -> float:
    """Seconds between changes to a weight."""
    return max(min_interval, rules.window / 1000 / _MAX_STEPS)


def stepped(rules: SlowStart, age: float, min_interval: float) -> float:
    """The weight factor, in steps that a proxy with this `min_interval` (in seconds) can follow."""
    if age * 1000 >= rules.window:
        return 1.0
    length = step(rules, min_interval)
    return rules.factor(age // length * length if length else age)


@dataclass(frozen=True, slots=True)
class Ramps:
    """The replicas that are ramping up. A replica ramps after it joins an existing pool, or after it was down.

    A replica does not ramp after a drain or a deep-health ejection, and gets its full weight immediately. If it was
    removed from the proxies because its drain deadline passed, it counts as new.
    """

    ready: frozenset[Key] | None = None
    """Replicas that had joined by the last call to `track`, or None before the first call."""
    since: Mapping[Key, float] = field(default_factory=dict)
    """The times at which the ramping replicas joined."""

    def track(
        self, all_pools: Iterable[Pool], snapshot: Snapshot, failing: Mapping[str, frozenset[str]], now: float
    ) -> Ramps:
        """Return the ramps after the set of replicas that accept requests may have changed.

        `all_pools` contains the relevant pools in the snapshot. `failing` contains the replicas, by pool, whose checks
        are failing.
        """
        pools = {pool.name: pool for pool in all_pools}
        up = [key for pool in pools.values() for key in _up(pool, failing.get(pool.name, frozenset()))]
        if self.ready is None:
            return Ramps(frozenset(up))
        resting = {name: drained_of(pool, snapshot) for name, pool in pools.items()}
        ready = frozenset(key for key in up if key in self.ready or key[1] not in resting[key[0]])
        earlier_pools = {name for name, _, _ in self.ready}
        since = {key: began for key, began in self.since.items() if key in ready and _ramps(pools[key[0]], now - began)}
        since |= {key: now for key in ready - self.ready if key[0] in earlier_pools and _ramps(pools[key[0]], 0.0)}
        return Ramps(ready, dict(sorted(since.items(), key=lambda item: item[0][:2])))

    def factors(self, topology: Topology, now: float, min_interval: float) -> Factors:
        """The current weight factors for a proxy with this `min_interval` (in seconds)."""
        by_pool: dict[str, dict[str, float]] = {}
        for rules, (pool, replica, _), age in self._ramping(topology, now):
            value = stepped(rules, age, min_interval)
            if value < 1.0:
                by_pool.setdefault(pool, {})[replica] = value
        return by_pool

    def next_change(self, topology: Topology, now: float, min_interval: float) -> float | None:
        """The time at which `factors` next change, or None if no replica is ramping."""
        remaining = [_left(rules, age, min_interval) for rules, _, age in self._ramping(topology, now)]
        return now + min(remaining) if remaining else None

    def _ramping(self, topology: Topology, now: float) -> list[tuple[SlowStart, Key, float]]:
        """The rules and the age, in seconds, of each replica that is still ramping."""
        pools = {pool.name: pool for pool in topology.pools}
        return [
            (rules, key, now - began)
            for key, began in self.since.items()
            if key[0] in pools and (rules := pools[key[0]].slow_start) and _ramps(pools[key[0]], now - began)
        ]


def lowest(factors: Iterable[Factors]) -> Factors:
    """Return each replica's lowest factor, because each proxy ramps at its own pace."""
    lowest_factors: dict[str, dict[str, float]] = {}
    for each in factors:
        for pool, of_pool in each.items():
            minimum = lowest_factors.setdefault(pool, {})
            minimum |= {name: min(value, minimum.get(name, value)) for name, value in of_pool.items()}
    return lowest_factors


def _up(pool: Pool, failing: frozenset[str]) -> list[Key]:
    return [(pool.name, item.name, item.address) for item in pool.replicas if item.name not in failing]


def _ramps(pool: Pool, age: float) -> bool:
    return pool.slow_start is not None and age * 1000 < pool.slow_start.window


def _left(rules: SlowStart, age: float, min_interval: float) -> float:
    length = step(rules, min_interval)
    return min(rules.window / 1000, (age // length + 1) * length) - age

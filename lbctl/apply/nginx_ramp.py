"""Slow start for nginx, which has none: a new replica's weight rises in a few steps, since each costs a reload.

Envoy's formula, read at the beginning of each step, so that a replica is never given more than Envoy would give it. A
step is as long as the proxy's `min_interval`, or an eighth of the window where that is longer: with the defaults (60 s,
10 %, 30 s) a replica has 10 %, after 30 s 50 %, after 60 s all. Pure: times in seconds on one clock, handed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lbctl.control.ramp import factor
from lbctl.ir.address import Address
from lbctl.ir.pools import Pool, SlowStart
from lbctl.ir.snapshot import Snapshot, drained_of, weights_of

_MOST_STEPS = 8
Key = tuple[str, str, Address]
"""Pool, replica, where it is: another address is another replica."""


def step(rules: SlowStart, min_interval: float) -> float:
    """Seconds between two changes of a weight."""
    return max(min_interval, rules.window / 1000 / _MOST_STEPS)


def stepped(rules: SlowStart, age: float, min_interval: float) -> float:
    """The factor on the weight of a replica that came `age` seconds ago; 1 when it is up."""
    if age * 1000 >= rules.window:
        return 1.0
    length = step(rules, min_interval)
    return factor(rules, age // length * length if length else age)


@dataclass(frozen=True, slots=True)
class Ramps:
    """Which replicas ramp. `ready`: those that took requests at the last look, None before the first; `since`: when
    those that ramp came. A replica ramps when it joins a pool that was there before, or comes back to it."""

    ready: frozenset[Key] | None = None
    since: Mapping[Key, float] = field(default_factory=dict)

    def follow(self, snapshot: Snapshot, now: float) -> Ramps:
        """Who takes requests now; to be called whenever that may have changed."""
        pools = {pool.name: pool for pool in snapshot.topology.pools}
        ready = frozenset(key for pool in pools.values() for key in _ready(pool, snapshot))
        if self.ready is None:
            return Ramps(ready)
        known = {name for name, _, _ in self.ready}
        since = {key: began for key, began in self.since.items() if key in ready and _ramps(pools[key[0]], now - began)}
        since |= {key: now for key in ready - self.ready if key[0] in known and _ramps(pools[key[0]], 0.0)}
        return Ramps(ready, dict(sorted(since.items(), key=lambda item: item[0][:2])))

    def apply(self, snapshot: Snapshot, now: float, min_interval: float) -> Snapshot:
        """With the weights of those that ramp; of the others nothing changes."""
        weights = dict(snapshot.weights)
        for pool in snapshot.topology.pools:
            factors = self._factors(pool, now, min_interval)
            if factors:
                pairs = zip(pool.replicas, weights_of(pool, snapshot), strict=True)
                weights[pool.name] = {item.name: weight.times(factors.get(item.name, 1.0)) for item, weight in pairs}
        return replace(snapshot, weights=weights)

    def next_change(self, snapshot: Snapshot, now: float, min_interval: float) -> float | None:
        """When `apply` next gives other weights; None when all are up."""
        found = []
        for pool in snapshot.topology.pools:
            rules = pool.slow_start
            ages = [now - began for key, began in self.since.items() if key[0] == pool.name]
            found += [now + _left(rules, age, min_interval) for age in ages if rules and _ramps(pool, age)]
        return min(found, default=None)

    def _factors(self, pool: Pool, now: float, min_interval: float) -> dict[str, float]:
        rules = pool.slow_start
        if rules is None:
            return {}
        ages = {key[1]: now - began for key, began in self.since.items() if key[0] == pool.name}
        factors = {name: stepped(rules, age, min_interval) for name, age in ages.items()}
        return {name: value for name, value in factors.items() if value < 1.0}


def _ready(pool: Pool, snapshot: Snapshot) -> list[Key]:
    drained = drained_of(pool, snapshot)
    return [(pool.name, item.name, item.address) for item in pool.replicas if item.name not in drained]


def _ramps(pool: Pool, age: float) -> bool:
    return pool.slow_start is not None and age * 1000 < pool.slow_start.window


def _left(rules: SlowStart, age: float, min_interval: float) -> float:
    length = step(rules, min_interval)
    return min(rules.window / 1000, (age // length + 1) * length) - age

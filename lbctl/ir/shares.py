"""Calculates the share of a route's requests that each pool and replica gets based on weights alone.

A share is configured, not measured. An algorithm that counts requests in flight follows the weights only roughly, and a
hash follows the keys. All commands and pages that show a share (`lint`, `diff`, `explain`, the API) use this module.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from lbctl.ir.pools import Pool, Replica
from lbctl.ir.routes import Forward, Redirect, Respond


def of_pools(action: Forward | Redirect | Respond) -> dict[str, float]:
    """Map each pool to its share of a route's requests, 0…1, before pins. Pools without a share are omitted."""
    if not isinstance(action, Forward):
        return {}
    total = sum(share.weight for share in action.shares)
    return {share.pool: share.weight / total for share in action.shares if share.weight}


def in_regions(replica: Replica, regions: tuple[str, ...]) -> bool:
    """Return whether a route with these `regions` may use the replica. An empty tuple allows every replica."""
    return not regions or replica.region in regions


def serving(pool: Pool, resting: Collection[str] = (), regions: tuple[str, ...] = ()) -> tuple[Replica, ...]:
    """Return the replicas that get new requests while all are healthy, which have the best remaining priority.

    Excluded are replicas drained in the files, replicas in `resting` (drained by an operator, or ejected by a health
    check), and replicas outside `regions`.
    """
    eligible = [
        replica
        for replica in pool.replicas
        if not replica.drain and replica.name not in resting and in_regions(replica, regions)
    ]
    priority = min((replica.priority for replica in eligible), default=0)
    return tuple(replica for replica in eligible if replica.priority == priority)


def of_replicas(
    pool: Pool,
    weights: Mapping[str, float] | None = None,
    resting: Collection[str] = (),
    regions: tuple[str, ...] = (),
) -> dict[str, float]:
    """Map each replica to its share of the pool's requests, 0…1. Replicas without new requests are omitted.

    `weights` are on the same scale as capacities, and a replica without a weight uses its capacity. `resting` and
    `regions` have the same meaning as in `serving`.
    """
    rates = {replica.name: replica.capacity for replica in serving(pool, resting, regions)}
    if weights:
        rates = {name: weights.get(name, capacity) for name, capacity in rates.items()}
    total = sum(rates.values())
    return {name: rate / total for name, rate in rates.items()}


class ReplicaShares:
    """Caches the capacity-based shares of a fleet's replicas, by pool and regions."""

    def __init__(self, pools: Iterable[Pool]) -> None:
        self._pools = {pool.name: pool for pool in pools}
        self._shares: dict[tuple[str, tuple[str, ...]], Mapping[str, float]] = {}

    def of(self, pool: str, regions: tuple[str, ...]) -> Mapping[str, float]:
        """Return the shares of the pool's replicas. The result is empty for a pool that is not in the fleet."""
        key = (pool, regions)
        if key not in self._shares:
            self._shares[key] = of_replicas(self._pools[pool], regions=regions) if pool in self._pools else {}
        return self._shares[key]

"""How much of a route's requests each pool and each replica gets, by weight alone.

It is what the fleet asks for, not what is seen: an algorithm that looks at requests in flight follows the weights
without keeping to them, and a hash follows the keys. Replicas that are drained, that stand by with a lower priority or
lie outside the route's regions get nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lbctl.ir.pools import Pool, Replica
from lbctl.ir.routes import Forward, Route


def of_pools(route: Route) -> dict[str, float]:
    """Pool → its share of the route's requests, 0…1, before pins; those without a share are left out."""
    if not isinstance(route.action, Forward):
        return {}
    total = sum(share.weight for share in route.action.shares)
    return {share.pool: share.weight / total for share in route.action.shares if share.weight}


def of_replicas(pool: Pool, regions: tuple[str, ...] = ()) -> dict[str, float]:
    """Replica → its share of the pool's requests, 0…1; those without one are left out."""
    able = [item for item in pool.replicas if not item.drain and (not regions or item.region in regions)]
    level = min((item.priority for item in able), default=0)
    carrying: list[Replica] = [item for item in able if item.priority == level]
    total = sum(item.capacity for item in carrying)
    return {item.name: item.capacity / total for item in carrying}


class Portion:
    """`of_replicas` of a fleet's pools, worked out once for each pool and regions."""

    def __init__(self, pools: Iterable[Pool]) -> None:
        self._pools = {item.name: item for item in pools}
        self._known: dict[tuple[str, tuple[str, ...]], Mapping[str, float]] = {}

    def of(self, pool: str, regions: tuple[str, ...]) -> Mapping[str, float]:
        """Empty for a pool that the fleet does not have."""
        key = (pool, regions)
        if key not in self._known:
            self._known[key] = of_replicas(self._pools[pool], regions) if pool in self._pools else {}
        return self._known[key]

"""Data residency: a route bound to regions reaches a backend of its own, with the replicas of those regions alone.

Where all replicas of a pool lie in the regions, the pool's own backend serves. A copy has its own checks and limits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace

from lbctl.ir.pools import Pool
from lbctl.ir.routes import Forward, Route
from lbctl.ir.snapshot import View
from lbctl.targets.haproxy import quote

_MARK = ".IN."
"""Names of the fleet have no capitals: no pool can be called like a copy of another."""


def backend_name(pool: Pool, regions: tuple[str, ...]) -> str:
    """The backend, without its `pool_`, that serves this pool to a route of these regions."""
    known = quote.name(pool.name).text
    if not regions or (pool.replicas and all(item.region in regions for item in pool.replicas)):
        return known
    return f"{known}{_MARK}{hashlib.sha256(chr(31).join(sorted(regions)).encode()).hexdigest()[:8]}"


def pool_name(backend: str) -> str:
    return backend.partition(_MARK)[0]


def copies(view: View) -> Iterator[tuple[str, Pool, View]]:
    """Each further backend: its name, its pool, and the view in which that pool has only what it may reach."""
    wanted: dict[str, tuple[Pool, tuple[str, ...]]] = {}
    for route in view.routes.values():
        for pool in _pools(route, view.pools):
            wanted.setdefault(backend_name(pool, route.regions), (pool, route.regions))
    for name in sorted(wanted):
        pool, regions = wanted[name]
        if name != pool.name:
            yield name, *within(pool, regions, view)


def _pools(route: Route, pools: Mapping[str, Pool]) -> list[Pool]:
    return [pools[name] for name in route.action.pools] if isinstance(route.action, Forward) else []


def within(pool: Pool, regions: tuple[str, ...], view: View) -> tuple[Pool, View]:
    """The pool that `backend_name` names, and the view in which it is the only one of its name."""
    if backend_name(pool, regions) == pool.name:
        return pool, view
    return only(pool, view, {item.name for item in pool.replicas if item.region in regions})


def only(pool: Pool, view: View, names: Set[str]) -> tuple[Pool, View]:
    """With these replicas alone."""
    kept = [pair for pair in zip(pool.replicas, view.weights[pool.name], strict=True) if pair[0].name in names]
    restricted = replace(pool, replicas=tuple(item for item, _ in kept), discovery=None)
    weights = {**view.weights, pool.name: tuple(weight for _, weight in kept)}
    return restricted, replace(view, pools={**view.pools, pool.name: restricted}, weights=weights)

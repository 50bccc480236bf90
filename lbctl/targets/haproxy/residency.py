"""Data residency: a route restricted to regions uses a separate backend with only the replicas in those regions.

If all replicas of a pool are in these regions, the route uses the pool's own backend. A separate backend has its own
checks and limits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace

from lbctl.ir.pools import Pool
from lbctl.ir.routes import Forward, Route
from lbctl.ir.shares import in_regions
from lbctl.ir.snapshot import View
from lbctl.targets.haproxy import quote

_MARK = ".IN."
"""Marks a copy. Names in a fleet contain no capitals, so no pool can have the name of such a backend."""


def backend_name(pool: Pool, regions: tuple[str, ...]) -> str:
    """Return the backend (without its `pool_` prefix) that serves this pool to routes with these regions."""
    name = quote.name(pool.name).text
    if not regions or (pool.replicas and all(in_regions(item, regions) for item in pool.replicas)):
        return name
    return f"{name}{_MARK}{hashlib.sha256(chr(31).join(sorted(regions)).encode()).hexdigest()[:8]}"


def pool_name(backend: str) -> str:
    """Return the pool of a backend. Both the backend and the pool are named without the `pool_` prefix."""
    return backend.partition(_MARK)[0]


def copies(view: View) -> Iterator[tuple[str, Pool, View]]:
    """Yield the name, pool and view of each additional backend.

    In this view, the pool has only the replicas of this backend.
    """
    backends: dict[str, tuple[Pool, tuple[str, ...]]] = {}
    for route in view.routes.values():
        for pool in _pools(route, view.pools):
            backends.setdefault(backend_name(pool, route.regions), (pool, route.regions))
    for name in sorted(backends):
        pool, regions = backends[name]
        if name != pool.name:
            yield name, *within(pool, regions, view)


def _pools(route: Route, pools: Mapping[str, Pool]) -> list[Pool]:
    return [pools[name] for name in route.action.pools] if isinstance(route.action, Forward) else []


def within(pool: Pool, regions: tuple[str, ...], view: View) -> tuple[Pool, View]:
    """Return the pool restricted to the replicas of `backend_name`, and the view with that pool."""
    if backend_name(pool, regions) == pool.name:
        return pool, view
    return with_replicas(pool, view, {item.name for item in pool.replicas if in_regions(item, regions)})


def with_replicas(pool: Pool, view: View, names: Set[str]) -> tuple[Pool, View]:
    """Return the pool and the view restricted to these replicas of the pool."""
    pairs = [pair for pair in zip(pool.replicas, view.weights[pool.name], strict=True) if pair[0].name in names]
    restricted = replace(pool, replicas=tuple(item for item, _ in pairs), discovery=None)
    weights = {**view.weights, pool.name: tuple(weight for _, weight in pairs)}
    return restricted, replace(view, pools={**view.pools, pool.name: restricted}, weights=weights)

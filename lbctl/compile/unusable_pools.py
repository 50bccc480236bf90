"""Reports pools that cannot serve requests, because no replica is in the route's regions or all are drained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lbctl.base.diagnostics import Path
from lbctl.compile.context import Context
from lbctl.ir.pools import FileDiscovery, Pool
from lbctl.ir.routes import Forward, Route


def check_residency(ctx: Context, routes: Iterable[Route], pools: Iterable[Pool]) -> None:
    """Report LB115 for each pool that has no replica in the regions of a route to it.

    A replica without a region counts as outside every region, as do replicas found through DNS. A targets file that
    does not exist yet is not checked.
    """
    judged = (pool for pool in pools if pool.replicas or not isinstance(pool.discovery, FileDiscovery))
    regions = {pool.name: {replica.region for replica in pool.replicas} for pool in judged}
    for route in routes:
        for pool, key in _outside(route, regions):
            ctx.error(
                "LB115",
                f"no replica of {pool} is in {' or '.join(route.regions)}",
                ("routes", route.name, *key),
                "set the region of its replicas, or use another pool for the route",
            )


def _outside(route: Route, regions: dict[str, set[str | None]]) -> Iterator[tuple[str, Path]]:
    """Yield each pool without a replica in the route's regions, and the key in the route that names it."""
    if not route.regions or not isinstance(route.action, Forward):
        return
    references: list[tuple[str, Path]] = [(pool, ("regions",)) for pool in sorted(_chosen(route.action))]
    references += [(route.action.fallback, ("fallback",))] if route.action.fallback else []
    references += [(route.action.mirror.pool, ("mirror", "pool"))] if route.action.mirror else []
    yield from ((pool, key) for pool, key in references if pool in regions and not regions[pool] & set(route.regions))


def check_drained(ctx: Context, routes: Iterable[Route], pools: Iterable[Pool]) -> None:
    """Report LB208, a warning, for each completely drained pool to which routes still send requests.

    A drained pool is allowed, because a replica is drained before it is removed, but a route without another pool can
    no longer serve requests. A pool without replicas does not count as drained, and mirrors are not considered.
    """
    drained = {pool.name for pool in pools if pool.replicas and all(replica.drain for replica in pool.replicas)}
    routes_by_pool: dict[str, list[str]] = {name: [] for name in sorted(drained)}
    for route in routes:
        for name in _without_relief(route, drained):
            routes_by_pool[name].append(route.name)
    for name, route_names in routes_by_pool.items():
        if route_names:
            ctx.warn(
                "LB208",
                f"every replica is drained: {_subject(route_names)} no response from this pool",
                ("pools", name, "replicas"),
                "keep at least one replica that is not drained, or set a fallback on the route",
            )


def _without_relief(route: Route, drained: set[str]) -> Iterator[str]:
    """Yield the drained pools to which the route sends requests, unless a fallback takes over those requests."""
    action = route.action
    if not isinstance(action, Forward) or (action.fallback and action.fallback not in drained):
        return
    yield from sorted(_chosen(action) & drained)


def _subject(names: list[str]) -> str:
    return f"the route {names[0]} gets" if len(names) == 1 else f"the routes {', '.join(names)} get"


def _chosen(action: Forward) -> set[str]:
    """Return the pools that get requests through a share or a pin."""
    return {share.pool for share in action.shares if share.weight} | {pin.pool for pin in action.pins}

"""Pools that are drained as a whole while routes still send them requests.

This is allowed, as a replica is drained before it is removed, but a route without another pool no longer answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lbctl.compile.context import Context
from lbctl.ir.pools import Pool
from lbctl.ir.routes import Forward, Route


def check_drained(ctx: Context, routes: Iterable[Route], pools: Iterable[Pool]) -> None:
    """Warn with LB208 about each such pool. A pool without replicas is not drained, and mirrors do not count."""
    drained = {pool.name for pool in pools if pool.replicas and all(replica.drain for replica in pool.replicas)}
    routes_by_pool: dict[str, list[str]] = {name: [] for name in sorted(drained)}
    for route in routes:
        for name in _without_relief(route, drained):
            routes_by_pool[name].append(route.name)
    for name, route_names in routes_by_pool.items():
        if route_names:
            ctx.warn(
                "LB208",
                f"every replica is drained: {_subject(route_names)} no answer from this pool",
                ("pools", name, "replicas"),
                "leave one that is not, or give the route a fallback",
            )


def _without_relief(route: Route, drained: set[str]) -> Iterator[str]:
    """Yield the drained pools that the route sends requests to, unless a fallback takes those requests."""
    action = route.action
    if not isinstance(action, Forward) or (action.fallback and action.fallback not in drained):
        return
    chosen = {share.pool for share in action.shares if share.weight} | {pin.pool for pin in action.pins}
    yield from sorted(chosen & drained)


def _subject(names: list[str]) -> str:
    return f"the route {names[0]} gets" if len(names) == 1 else f"the routes {', '.join(names)} get"

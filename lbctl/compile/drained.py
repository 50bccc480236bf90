"""Pools that are drained as a whole while routes still send them requests: allowed, as a replica is drained before it
goes, but a route without another pool answers nothing any more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lbctl.compile.context import Context
from lbctl.ir.pools import Pool
from lbctl.ir.routes import Forward, Route


def check_drained(ctx: Context, routes: Iterable[Route], pools: Iterable[Pool]) -> None:
    """LB208 for each such pool. A pool without replicas is not drained, and a mirror is missed by nobody."""
    drained = {pool.name for pool in pools if pool.replicas and all(item.drain for item in pool.replicas)}
    cut: dict[str, list[str]] = {name: [] for name in sorted(drained)}
    for route in routes:
        for name in _without_relief(route, drained):
            cut[name].append(route.name)
    for name, names in cut.items():
        if names:
            ctx.warn(
                "LB208",
                f"every replica is drained: {_told(names)} no answer from this pool",
                ("pools", name, "replicas"),
                "leave one that is not, or give the route a fallback",
            )


def _without_relief(route: Route, drained: set[str]) -> Iterator[str]:
    """The drained pools that the route sends requests to, unless a fallback takes them."""
    action = route.action
    if not isinstance(action, Forward) or (action.fallback and action.fallback not in drained):
        return
    drawn = {share.pool for share in action.shares if share.weight} | {pin.pool for pin in action.pins}
    yield from sorted(drawn & drained)


def _told(names: list[str]) -> str:
    return f"the route {names[0]} gets" if len(names) == 1 else f"the routes {', '.join(names)} get"

"""Data residency that nobody can keep: a route whose regions hold no replica of a pool that it sends requests to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lbctl.base.diagnostics import Path
from lbctl.compile.context import Context
from lbctl.ir.pools import FileDiscovery, Pool
from lbctl.ir.routes import Forward, Route


def check_residency(ctx: Context, routes: Iterable[Route], pools: Iterable[Pool]) -> None:
    """LB115 for each such pool. A replica without a region is outside every region, and those that DNS finds are; what
    a file of targets will say that is not there yet, nobody knows."""
    known = (pool for pool in pools if pool.replicas or not isinstance(pool.discovery, FileDiscovery))
    regions = {pool.name: {item.region for item in pool.replicas} for pool in known}
    for route in routes:
        for pool, key in _empty(route, regions):
            ctx.error(
                "LB115",
                f"no replica of {pool} is in {' or '.join(route.regions)}",
                ("routes", route.name, *key),
                "name the region of its replicas, or send the route elsewhere",
            )


def _empty(route: Route, regions: dict[str, set[str | None]]) -> Iterator[tuple[str, Path]]:
    """Each such pool, and what of the route is wrong about it."""
    if not route.regions or not isinstance(route.action, Forward):
        return
    drawn = {share.pool for share in route.action.shares if share.weight} | {pin.pool for pin in route.action.pins}
    wanted: list[tuple[str, Path]] = [(pool, ("regions",)) for pool in sorted(drawn)]
    wanted += [(route.action.fallback, ("fallback",))] if route.action.fallback else []
    wanted += [(route.action.mirror.pool, ("mirror", "pool"))] if route.action.mirror else []
    yield from ((pool, key) for pool, key in wanted if pool in regions and not regions[pool] & set(route.regions))

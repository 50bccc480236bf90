"""Data residency that cannot be satisfied: a route whose regions hold no replica of one of its pools."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lbctl.base.diagnostics import Path
from lbctl.compile.context import Context
from lbctl.ir.pools import FileDiscovery, Pool
from lbctl.ir.routes import Forward, Route


def check_residency(ctx: Context, routes: Iterable[Route], pools: Iterable[Pool]) -> None:
    """Report LB115 for each such pool.

    A replica without a region is outside every region, as are those that DNS finds. A file of targets that does not
    exist yet is not judged.
    """
    judged = (pool for pool in pools if pool.replicas or not isinstance(pool.discovery, FileDiscovery))
    regions = {pool.name: {replica.region for replica in pool.replicas} for pool in judged}
    for route in routes:
        for pool, key in _empty(route, regions):
            ctx.error(
                "LB115",
                f"no replica of {pool} is in {' or '.join(route.regions)}",
                ("routes", route.name, *key),
                "name the region of its replicas, or send the route elsewhere",
            )


def _empty(route: Route, regions: dict[str, set[str | None]]) -> Iterator[tuple[str, Path]]:
    """Yield each such pool, and the key of the route that names it."""
    if not route.regions or not isinstance(route.action, Forward):
        return
    chosen = {share.pool for share in route.action.shares if share.weight} | {pin.pool for pin in route.action.pins}
    references: list[tuple[str, Path]] = [(pool, ("regions",)) for pool in sorted(chosen)]
    references += [(route.action.fallback, ("fallback",))] if route.action.fallback else []
    references += [(route.action.mirror.pool, ("mirror", "pool"))] if route.action.mirror else []
    yield from ((pool, key) for pool, key in references if pool in regions and not regions[pool] & set(route.regions))

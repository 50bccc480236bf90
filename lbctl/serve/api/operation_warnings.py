"""Warnings about side effects of an operation: pools without an available replica, and files that are not published."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from lbctl.api import schema
from lbctl.control.fitness import FIT, UNKNOWN
from lbctl.ir.routes import Forward, Route
from lbctl.ir.shares import of_pools
from lbctl.serve.fleet.log import ReloadOutcome

_AVAILABLE = FIT | {UNKNOWN}
"""The states of replicas that get requests."""


def not_served(reload: ReloadOutcome | None) -> Iterator[str]:
    """Yield a warning if the published fleet is not the one in the files."""
    if reload is None or reload.valid:
        return
    if reload.result == "rolled_back":
        yield "a rollback published an earlier fleet, so the files are ignored until they change"
        return
    errors = [str(item) for item in reload.diagnostics if item.severity == "error"]
    first = f"; the first: {errors[0]}" if errors else ""
    yield f"the last valid fleet is published instead of the files: {reload.refused or reload.result}{first}"


def unserved(pools: Iterable[schema.Pool], routes: Iterable[Route], about: Collection[str]) -> Iterator[str]:
    """Yield a warning for each pool in `about` that has no available replica for a route that needs it.

    `routes` contain the splits that the proxies use.
    """
    regions = {pool.name: [item.region for item in pool.replicas if item.state in _AVAILABLE] for pool in pools}
    routes = tuple(routes)
    for pool in sorted(about):
        effects = [text for route in routes if (text := _effect(route, pool, regions))]
        if effects:
            yield f"pool {pool} has no available replica: {'; '.join(effects)}, until a replica becomes available"


def _effect(route: Route, pool: str, regions: Mapping[str, list[str | None]]) -> str:
    """Return how the route handles requests for the pool; empty if the pool has available replicas."""
    if not isinstance(route.action, Forward) or _is_fit(route, pool, regions):
        return ""
    share = of_pools(route.action).get(pool, 0.0)
    if not share:
        pinned = any(pin.pool == pool for pin in route.action.pins)
        return f"route {route.name} returns 503 for requests that are pinned to it" if pinned else ""
    part = "" if share == 1 else f" for {share * 100:.3g} % of its requests"
    if route.action.fallback and _is_fit(route, route.action.fallback, regions):
        return f"route {route.name} uses its fallback {route.action.fallback}{part}"
    return f"route {route.name} returns 503{part}"


def _is_fit(route: Route, pool: str, regions: Mapping[str, list[str | None]]) -> bool:
    return any(not route.regions or region in route.regions for region in regions.get(pool, ()))

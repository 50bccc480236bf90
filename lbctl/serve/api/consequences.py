"""What an operator has to know of the fleet beside the change that was asked for: who serves nobody, and old files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from lbctl.ir.routes import Forward, Route
from lbctl.ir.shares import of_pools
from lbctl.serve.api import schema
from lbctl.serve.fleet.reload_result import ReloadOutcome

_FIT = frozenset(("in", "ramping", "slow", "hot"))
"""The states of a replica that gets requests."""


def not_served(reload: ReloadOutcome | None) -> Iterator[str]:
    """Yield a sentence where the files are not what is served."""
    if reload is None or reload.valid:
        return
    if reload.result == "rolled_back":
        yield "the files are ignored until they change, since an earlier fleet is served by a rollback"
        return
    errors = [str(item) for item in reload.diagnostics if item.severity == "error"]
    reasons = filter(None, (reload.refused or reload.result, *errors[:1]))
    yield f"the files are not served, an earlier fleet is: {': '.join(reasons)}"


def unserved(pools: Iterable[schema.Pool], routes: Iterable[Route], about: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each of the pools `about` that has no fit replica for a route that needs it.

    `routes` have the splits that the proxies get.
    """
    regions = {pool.name: [item.region for item in pool.replicas if item.state in _FIT] for pool in pools}
    routes = tuple(routes)
    for pool in sorted(about):
        effects = [text for route in routes if (text := _effect(route, pool, regions))]
        if effects:
            yield f"nobody serves the pool {pool}: {'; '.join(effects)}, until one of its replicas is back"


def with_returned(pools: Iterable[schema.Pool], pool: str, replica: str) -> Iterator[schema.Pool]:
    """Yield the pools with a replica whose drain has just ended as `in`.

    Until their next report, the proxies are known to send it nothing; that is the end of its drain.
    """
    for item in pools:
        if item.name == pool:
            returned = (
                replace(each, state="in") if each.name == replica and each.state == "draining" else each
                for each in item.replicas
            )
            yield replace(item, replicas=tuple(returned))
        else:
            yield item


def _effect(route: Route, pool: str, regions: Mapping[str, list[str | None]]) -> str:
    """Return what happens to the requests of a route that would go to the pool; empty where it has fit replicas."""
    if not isinstance(route.action, Forward) or _is_fit(route, pool, regions):
        return ""
    share = of_pools(route.action).get(pool, 0.0)
    if not share:
        pinned = any(pin.pool == pool for pin in route.action.pins)
        return f"route {route.name} answers 503 to what is pinned to it" if pinned else ""
    part = "" if share == 1 else f" for {share * 100:.3g} % of its requests"
    if route.action.fallback and _is_fit(route, route.action.fallback, regions):
        return f"route {route.name} goes to its fallback {route.action.fallback}{part}"
    return f"route {route.name} answers 503{part}"


def _is_fit(route: Route, pool: str, regions: Mapping[str, list[str | None]]) -> bool:
    return any(not route.regions or region in route.regions for region in regions.get(pool, ()))

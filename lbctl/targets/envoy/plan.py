"""Which clusters a view needs, and what they are called: a pool may stand in more than one.

Envoy decides about regions and about a fallback per cluster, not per route. So a pool becomes one cluster of its own
name, one more for each set of regions that leaves some of its replicas out, and one in front of it and its fallback.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lbctl.ir.pools import Pool
from lbctl.ir.routes import Forward, Route
from lbctl.ir.snapshot import View
from lbctl.ir.weight import Weight
from lbctl.targets import replica_token
from lbctl.targets.envoy.endpoints import Placement, allowed


@dataclass(frozen=True, slots=True)
class Upstream:
    """One cluster with replicas. `weights` stands beside `pool.replicas`; `out`: those of `drained` that are sick."""

    name: str
    pool: Pool
    weights: tuple[Weight, ...]
    drained: frozenset[str]
    placement: Placement
    retry_budget: float | None
    out: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Fallback:
    """A cluster that is `first` while that has a fit replica, else `second` (names of clusters)."""

    name: str
    first: str
    second: str
    pool: Pool


@dataclass(frozen=True, slots=True)
class Plan:
    """Sorted by name. `names`: (route, pool) → the cluster that the route sends to."""

    upstreams: tuple[Upstream, ...]
    fallbacks: tuple[Fallback, ...]
    names: Mapping[tuple[str, str], str]


def variant(pool: Pool) -> str:
    """The access log's word for a pool of a split."""
    return (pool.model.version if pool.model else None) or pool.name


def sheds(pool: Pool) -> bool:
    """Whether Envoy can shed for this pool: it looks at one rank of replicas only."""
    return pool.load_shedding is not None and pool.locality is None and len({r.priority for r in pool.replicas}) < 2


def plan(view: View) -> Plan:
    upstreams: dict[str, Upstream] = {}
    fallbacks: dict[str, Fallback] = {}
    names: dict[tuple[str, str], str] = {}
    strict = _with_fallback(view)
    budgets, secure = _budgets(view), replica_token.https_alone(view)
    for route, pool in _uses(view):
        upstream = _upstream(view, pool, route.regions, pool in strict, pool in secure, budgets.get(pool))
        upstreams[upstream.name] = upstream
        names[route.name, pool] = upstream.name
    for route in view.routes.values():
        for item in _fallbacks(view, route, names):
            fallbacks[item.name] = item
            names[route.name, item.pool.name] = item.name
    return Plan(
        tuple(upstreams[key] for key in sorted(upstreams)), tuple(fallbacks[key] for key in sorted(fallbacks)), names
    )


def _uses(view: View) -> list[tuple[Route, str]]:
    found = []
    for route in view.routes.values():
        if isinstance(route.action, Forward):
            mirror = route.action.mirror
            pools = sorted({*route.action.pools, mirror.pool}) if mirror else route.action.pools
            found += [(route, name) for name in pools]
    return found


def _upstream(
    view: View, pool: str, regions: tuple[str, ...], strict: bool, secure: bool, budget: float | None
) -> Upstream:
    body = view.pools[pool]
    inside = regions and body.replicas and all(allowed(item, regions) for item in body.replicas)
    narrowed = () if inside else regions
    name = f"{pool}|{'+'.join(narrowed)}" if narrowed else pool
    placement = Placement(narrowed, strict, sheds(body) and not strict, secure)
    out = view.out.get(pool, frozenset())
    return Upstream(name, body, view.weights[pool], view.drained[pool], placement, budget, out)


def _with_fallback(view: View) -> set[str]:
    found: set[str] = set()
    for route in view.routes.values():
        if isinstance(route.action, Forward) and route.action.fallback:
            found |= set(route.action.pools) - {route.action.fallback}
    return found


def _budgets(view: View) -> dict[str, float]:
    """Envoy has one retry budget a pool: the smallest of its routes."""
    found: dict[str, float] = {}
    for route, pool in _uses(view):
        if route.retry.budget is not None:
            found[pool] = min(route.retry.budget, found.get(pool, route.retry.budget))
    return found


def _fallbacks(view: View, route: Route, names: Mapping[tuple[str, str], str]) -> list[Fallback]:
    if not isinstance(route.action, Forward) or not route.action.fallback:
        return []
    second = names[route.name, route.action.fallback]
    firsts = [(pool, names[route.name, pool]) for pool in route.action.pools if pool != route.action.fallback]
    return [Fallback(f"{first}|else|{second}", first, second, view.pools[pool]) for pool, first in firsts]

"""The clusters of a view and their names. A pool may require several clusters.

Envoy handles regions and fallbacks per cluster, not per route. A pool becomes one cluster with its own name, and one
more for each set of regions that excludes some of its replicas. If the pool has a fallback, an aggregate cluster is
placed in front of the pool's and the fallback's clusters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lbctl.ir import written_credentials
from lbctl.ir.pools import Pool
from lbctl.ir.routes import Forward, Route, busy_statuses_of_pool
from lbctl.ir.shares import in_regions
from lbctl.ir.snapshot import View
from lbctl.ir.weight import Weight
from lbctl.targets import replica_token
from lbctl.targets.envoy.endpoints import Placement
from lbctl.targets.hosted import HostedPool, check_key, hosted_pool

_REGIONS = "|"
"""Separates the pool from the regions in a cluster name. Pool names do not contain it."""


@dataclass(frozen=True, slots=True)
class PlannedCluster:
    """One cluster with replicas.

    `weights` are in the order of `pool.replicas`.
    """

    name: str
    pool: Pool
    """Pool with its replicas."""
    weights: tuple[Weight, ...]
    """Weights of `pool.replicas`, in the same order."""
    drained: frozenset[str]
    """Replicas that get no new requests."""
    placement: Placement
    """Layout of its replicas, such as the allowed regions."""
    retry_budget: float | None
    """Retries as a percentage of requests, or None for no limit."""
    out: frozenset[str] = frozenset()
    """Members of `drained` that are faulty."""
    busy_statuses: tuple[int, ...] = ()
    """Statuses with which the replicas decline requests. Responses with these statuses are not treated as faults."""
    hosted: HostedPool | None = None
    """The pool, if it has its own headers; None if it gets the client's headers."""
    check_key: tuple[str, str] | None = field(default=None, repr=False)
    """Name and value of an additional header in health checks, or None."""

    @property
    def holds_credentials(self) -> bool:
        """Whether the cluster's health checks contain a credential in plain text."""
        return self.check_key is not None or any(True for _ in written_credentials.of_pool(self.pool))


@dataclass(frozen=True, slots=True)
class Fallback:
    """An aggregate cluster: requests go to `first` while it has a healthy replica, and to `second` otherwise."""

    name: str
    """Name of the aggregate cluster."""
    first: str
    """Cluster that gets the requests."""
    second: str
    """Cluster that gets the requests while `first` has no healthy replica."""
    pool: Pool
    """Pool of `first`."""
    hosted: tuple[HostedPool, ...] = ()
    """The pools, out of these two, that have their own headers."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The clusters of a view, sorted by name."""

    upstreams: tuple[PlannedCluster, ...]
    """Clusters with replicas, by name."""
    fallbacks: tuple[Fallback, ...]
    """Aggregate clusters, by name."""
    names: Mapping[tuple[str, str], str]
    """Maps each (route, pool) pair to the cluster that the route sends requests to."""


def variant(pool: Pool) -> str:
    """Return the name of a split's pool in the access log."""
    return (pool.model.version if pool.model else None) or pool.name


def sheds(pool: Pool) -> bool:
    """Return whether Envoy can shed load for this pool. This requires that all replicas have the same priority."""
    return pool.load_shedding is not None and pool.locality is None and len({r.priority for r in pool.replicas}) < 2


def plan(view: View) -> ClusterPlan:
    """Return the clusters that a view's routes need."""
    upstreams: dict[str, PlannedCluster] = {}
    fallbacks: dict[str, Fallback] = {}
    names: dict[tuple[str, str], str] = {}
    strict = _with_fallback(view)
    budgets, secure = _budgets(view), replica_token.https_alone(view)
    routes = _routes_to(view)
    for route, pool in _uses(view):
        leading = routes.get(pool, [])
        upstream = _upstream(view, pool, route.regions, pool in strict, pool in secure, budgets.get(pool), leading)
        upstreams[upstream.name] = upstream
        names[route.name, pool] = upstream.name
    for route in view.routes.values():
        for item in _fallbacks(view, route, names):
            fallbacks[item.name] = item
            names[route.name, item.pool.name] = item.name
    return ClusterPlan(
        tuple(upstreams[key] for key in sorted(upstreams)), tuple(fallbacks[key] for key in sorted(fallbacks)), names
    )


def pool_name(cluster: str) -> str:
    """Return the pool of a cluster with replicas; for a cluster that is not lbctl's, return the cluster's name."""
    return cluster.partition(_REGIONS)[0]


def _uses(view: View) -> list[tuple[Route, str]]:
    """Return each route with each pool that it sends requests to, including mirrors."""
    uses = []
    for route in view.routes.values():
        if isinstance(route.action, Forward):
            mirror = route.action.mirror
            pools = sorted({*route.action.pools, mirror.pool}) if mirror else route.action.pools
            uses += [(route, name) for name in pools]
    return uses


def _routes_to(view: View) -> dict[str, list[Route]]:
    """Map each pool to the routes that forward to it, excluding mirrors."""
    routes: dict[str, list[Route]] = {}
    for route in view.routes.values():
        for pool in route.action.pools if isinstance(route.action, Forward) else ():
            routes.setdefault(pool, []).append(route)
    return routes


def _upstream(
    view: View,
    pool: str,
    regions: tuple[str, ...],
    strict: bool,
    secure: bool,
    budget: float | None,
    routes: Sequence[Route],
) -> PlannedCluster:
    settings = view.pools[pool]
    all_allowed = regions and settings.replicas and all(in_regions(item, regions) for item in settings.replicas)
    restricted = () if all_allowed else regions
    name = f"{pool}{_REGIONS}{'+'.join(restricted)}" if restricted else pool
    placement = Placement(restricted, strict, sheds(settings) and not strict, secure)
    out = view.out.get(pool, frozenset())
    weights, drained = view.weights[pool], view.drained[pool]
    busy_statuses = busy_statuses_of_pool(settings, routes)
    hosted, key = hosted_pool(view, pool), check_key(view, settings)
    return PlannedCluster(name, settings, weights, drained, placement, budget, out, busy_statuses, hosted, key)


def _with_fallback(view: View) -> set[str]:
    """Return the pools that have a fallback."""
    pools: set[str] = set()
    for route in view.routes.values():
        if isinstance(route.action, Forward) and route.action.fallback:
            pools |= set(route.action.pools) - {route.action.fallback}
    return pools


def _budgets(view: View) -> dict[str, float]:
    """Return the retry budget of each pool.

    Envoy has one budget per pool, so the smallest budget of the pool's routes applies.
    """
    budgets: dict[str, float] = {}
    for route, pool in _uses(view):
        if route.retry.budget is not None:
            budgets[pool] = min(route.retry.budget, budgets.get(pool, route.retry.budget))
    return budgets


def _fallbacks(view: View, route: Route, names: Mapping[tuple[str, str], str]) -> list[Fallback]:
    if not isinstance(route.action, Forward) or not route.action.fallback:
        return []
    second = names[route.name, route.action.fallback]
    firsts = [(pool, names[route.name, pool]) for pool in route.action.pools if pool != route.action.fallback]
    return [
        Fallback(f"{first}|else|{second}", first, second, view.pools[pool], _hosted(view, pool, route.action.fallback))
        for pool, first in firsts
    ]


def _hosted(view: View, *pools: str) -> tuple[HostedPool, ...]:
    return tuple(item for item in (hosted_pool(view, pool) for pool in pools) if item is not None)

"""Derives routes from pools, based on where requests to each kind of server name the model.

A single pool gets its server kind's paths. Multiple pools that serve the OpenAI API are distinguished by the model in
the request body, and multiple v2 pools by the model in the path. If a pool cannot be distinguished in either way, it
gets a separate path prefix, which is removed before requests are forwarded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lbctl.init.models import MAX_NAMES
from lbctl.init.pools import PoolDraft, unique_name

_PREFIX = re.compile(r"/(?:[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}/){0,9}(?:[A-Za-z0-9_-][A-Za-z0-9._-]{0,99})?")


@dataclass(frozen=True, slots=True)
class RouteDraft:
    """A route to be written to the fleet."""

    name: str
    """Unique name in the draft."""
    prefix: str
    """Path prefix, or the whole path if `lists_models` or `exact` is set."""
    models: tuple[str, ...] = ()
    """Models in the request body."""
    pools: tuple[PoolDraft, ...] = ()
    """One pool, or several that share the requests in proportion to their number of replicas. Empty if `lists_models`
    is set."""
    rewrite: str = ""
    """Replacement for the path prefix."""
    lists_models: bool = False
    """Whether the proxy itself returns the list of all models."""
    exact: bool = False
    """Whether only this exact path matches."""


def routes_of(pools: Sequence[PoolDraft]) -> list[RouteDraft]:
    """Return at least one route for each pool. Names are unique."""
    names: set[str] = set()
    if len(pools) == 1:
        return list(_all_paths(pools[0], names))
    openai = [pool for pool in pools if pool.kind.api == "openai"]
    v2 = [pool for pool in pools if pool.kind.api == "v2"]
    routes = [*_by_model(openai, names), *_by_path(v2, names)]
    reached = {pool.name for route in routes for pool in route.pools}
    return [*routes, *(_own_prefix(pool, names) for pool in pools if pool.name not in reached)]


def _all_paths(pool: PoolDraft, route_names: set[str]) -> Iterator[RouteDraft]:
    """Yield the routes to a pool for all paths of its server kind."""
    for prefix in _prefixes(pool):
        yield RouteDraft(unique_name(pool.name, route_names), prefix, pools=(pool,))
    for path in pool.kind.paths:
        yield RouteDraft(unique_name(pool.name, route_names), path, pools=(pool,), exact=True)


def _prefixes(pool: PoolDraft) -> tuple[str, ...]:
    apps = pool.first.apps
    prefixes = tuple(prefix for prefix, _ in apps if _PREFIX.fullmatch(prefix))
    return prefixes if prefixes and len(prefixes) == len(apps) <= MAX_NAMES else pool.kind.prefixes


def _by_model(pools: Sequence[PoolDraft], route_names: set[str]) -> Iterator[RouteDraft]:
    """Route by the model in the body.

    A single pool gets the entire OpenAI API. With several pools, the proxy itself returns the list of all models.
    """
    if len(pools) == 1:
        yield RouteDraft(unique_name(pools[0].name, route_names), "/v1/", pools=(pools[0],))
        return
    serving = _pools_by_model({pool.name: pool.first.models.names for pool in pools})
    groups: dict[tuple[str, ...], list[str]] = {}
    for model, names in serving.items():
        groups.setdefault(names, []).append(model)
    for names, models in groups.items():
        members = tuple(pool for pool in pools if pool.name in names)
        yield RouteDraft(unique_name(members[0].name, route_names), "/v1/", tuple(models), members)
    if serving:
        yield RouteDraft(unique_name("models", route_names), "/v1/models", lists_models=True)


def _by_path(pools: Sequence[PoolDraft], route_names: set[str]) -> Iterator[RouteDraft]:
    if len(pools) == 1:
        for prefix in pools[0].kind.prefixes:
            if prefix.startswith("/v2/"):
                yield RouteDraft(unique_name(pools[0].name, route_names), prefix, pools=(pools[0],))
        for path in pools[0].kind.paths:
            yield RouteDraft(unique_name(pools[0].name, route_names), path, pools=(pools[0],), exact=True)
        return
    for model, names in _pools_by_model({pool.name: pool.segments for pool in pools}).items():
        members = tuple(pool for pool in pools if pool.name in names)
        yield RouteDraft(unique_name(members[0].name, route_names), f"/v2/models/{model}/", pools=members)


def _pools_by_model(models: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Map each model to the pools that serve it."""
    all_models = sorted({model for names in models.values() for model in names})
    return {model: tuple(pool for pool, names in models.items() if model in names) for model in all_models}


def _own_prefix(pool: PoolDraft, route_names: set[str]) -> RouteDraft:
    return RouteDraft(unique_name(pool.name, route_names), f"/{pool.name}/", pools=(pool,), rewrite="/")

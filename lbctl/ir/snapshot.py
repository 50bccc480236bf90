"""`Snapshot` is the fleet and its live state; `view` is the part of it that one proxy gets.

The live state holds only what differs from the files: a replica that is absent from `weights` has its capacity, a route
that is absent from `splits` has the file's shares. `render` uses a Snapshot without live state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial

from lbctl.ir.listeners import Listener
from lbctl.ir.pools import CircuitBreaker, Pool
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import Forward, RateLimit, Route, Share
from lbctl.ir.secrets import ApiKey, Secrets
from lbctl.ir.topology import Topology
from lbctl.ir.weight import Weight, plain


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that any proxy needs. `weights`: pool → replica → weight; `drained`: pool → replicas that get nothing new,
    besides those that the files drain; `out`: likewise those that are sick, which their own clients leave too;
    `splits`: route → shares; `addresses`: host name of a fixed address → its IPs, for proxies that do not resolve names
    themselves."""

    topology: Topology
    weights: Mapping[str, Mapping[str, Weight]] = field(default_factory=dict)
    drained: Mapping[str, frozenset[str]] = field(default_factory=dict)
    splits: Mapping[str, tuple[Share, ...]] = field(default_factory=dict)
    secrets: Secrets = field(default_factory=Secrets)
    addresses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    out: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class View:
    """What one proxy gets: its listeners, the routes that they lead to, the pools that those need; limits divided.

    `weights[pool]` stands beside `pools[pool].replicas`, one a replica; `drained[pool]` names the replicas
    that get nothing new, `out[pool]` those of them that are sick. `api_keys` and `jwks`: what the key files of the
    routes hold, by route. All maps are in the order of names.
    """

    proxy: Proxy
    listeners: tuple[Listener, ...]
    routes: Mapping[str, Route]
    pools: Mapping[str, Pool]
    weights: Mapping[str, tuple[Weight, ...]]
    drained: Mapping[str, frozenset[str]]
    api_keys: Mapping[str, tuple[ApiKey, ...]] = field(default_factory=dict)
    jwks: Mapping[str, str] = field(default_factory=dict)
    out: Mapping[str, frozenset[str]] = field(default_factory=dict)


def view(snapshot: Snapshot, proxy: Proxy) -> View:
    """`proxy` may be one that the files do not name: then its limits are those of a single instance."""
    topology = snapshot.topology
    listeners = tuple(item for item in topology.listeners if not proxy.listeners or item.name in proxy.listeners)
    used = {rule.route for item in listeners for rule in item.rules}
    routes = {item.name: _live_route(item, snapshot) for item in topology.routes if item.name in used}
    wanted = {name for route in routes.values() for name in pools_of(route)}
    instances = cache(partial(_instances, topology, proxy))
    by_route = {name: instances(frozenset(route.listeners)) for name, route in routes.items()}
    reached = _listeners_of_pools(topology)
    by_pool = {name: instances(frozenset(reached[name])) for name in wanted}
    pools = {item.name: _divided_pool(item, by_pool[item.name]) for item in topology.pools if item.name in wanted}
    return View(
        proxy=proxy,
        listeners=tuple(_divided_listener(item, instances(frozenset({item.name}))) for item in listeners),
        routes={name: _divided_route(route, by_route[name]) for name, route in routes.items()},
        pools=pools,
        weights={name: weights_of(pool, snapshot) for name, pool in pools.items()},
        drained={name: drained_of(pool, snapshot) for name, pool in pools.items()},
        api_keys={name: _api_keys(route, snapshot.secrets) for name, route in routes.items() if route.auth},
        jwks={name: _jwks(route, snapshot.secrets) for name, route in routes.items() if route.auth},
        out={name: snapshot.out[name] for name in pools if snapshot.out.get(name)},
    )


def weights_of(pool: Pool, snapshot: Snapshot) -> tuple[Weight, ...]:
    """As `View.weights` has them."""
    live = snapshot.weights.get(pool.name) or {}
    return tuple([live.get(item.name) or plain(item.capacity) for item in pool.replicas])


def drained_of(pool: Pool, snapshot: Snapshot) -> frozenset[str]:
    """As `View.drained` has them."""
    filed = frozenset([item.name for item in pool.replicas if item.drain])
    return filed | snapshot.drained.get(pool.name, frozenset()) | snapshot.out.get(pool.name, frozenset())


def part(limit: int, instances: int) -> int:
    """One instance's part of a limit of the fleet, rounded up and at least 1."""
    return max(1, -(-limit // instances))


def pools_of(route: Route) -> tuple[str, ...]:
    """Every pool that a request of this route, or its copy, may reach."""
    if not isinstance(route.action, Forward):
        return ()
    mirror = route.action.mirror
    return (*route.action.pools, mirror.pool) if mirror else route.action.pools


def _instances(topology: Topology, proxy: Proxy, listeners: frozenset[str]) -> int:
    """The sum of the instances of all proxies that carry one of `listeners`; `proxy` counts when it is unnamed."""
    named = [item for item in topology.proxies if not item.listeners or listeners & set(item.listeners)]
    if proxy.name not in {item.name for item in topology.proxies}:
        named = [proxy]
    return max(1, sum(item.instances for item in named))


def _listeners_of_pools(topology: Topology) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for route in topology.routes:
        for pool in pools_of(route):
            found.setdefault(pool, set()).update(route.listeners)
    return found


def _live_route(route: Route, snapshot: Snapshot) -> Route:
    """A pool of the file's split that the live one leaves out gets nothing, and stays: it may come back any time."""
    shares = snapshot.splits.get(route.name)
    if shares is None or not isinstance(route.action, Forward):
        return route
    live = {item.pool: item.weight for item in shares}
    filed = [item.pool for item in route.action.shares]
    shares = tuple(Share(pool, live.get(pool, 0)) for pool in dict.fromkeys([*filed, *live]))
    return replace(route, action=replace(route.action, shares=shares))


def _api_keys(route: Route, secrets: Secrets) -> tuple[ApiKey, ...]:
    told = route.auth.api_keys if route.auth else None
    return secrets.api_keys.get(told.file, ()) if told else ()


def _jwks(route: Route, secrets: Secrets) -> str:
    told = route.auth.jwt if route.auth else None
    return secrets.jwks.get(told.jwks_file, '{"keys": []}') if told else '{"keys": []}'


def _divided_listener(listener: Listener, instances: int) -> Listener:
    if listener.max_connections is None:
        return listener
    return replace(listener, max_connections=part(listener.max_connections, instances))


def _divided_route(route: Route, instances: int) -> Route:
    if instances == 1 or not route.rate_limits:
        return route
    return replace(route, rate_limits=tuple(_divided_limit(item, instances) for item in route.rate_limits))


def _divided_limit(limit: RateLimit, instances: int) -> RateLimit:
    if limit.concurrent:
        return replace(limit, concurrent=part(limit.concurrent, instances))
    return replace(limit, requests=part(limit.requests, instances), burst=part(limit.burst, instances))


def _divided_pool(pool: Pool, instances: int) -> Pool:
    if instances == 1:
        return pool
    whole = pool.circuit_breaker
    divided = CircuitBreaker(
        max_connections=part(whole.max_connections, instances),
        max_pending_requests=part(whole.max_pending_requests, instances),
        max_requests=part(whole.max_requests, instances),
        max_retries=part(whole.max_retries, instances),
        replica_max_connections=_maybe(whole.replica_max_connections, instances),
        replica_max_requests=_maybe(whole.replica_max_requests, instances),
    )
    return replace(pool, circuit_breaker=divided)


def _maybe(limit: int | None, instances: int) -> int | None:
    return None if limit is None else part(limit, instances)

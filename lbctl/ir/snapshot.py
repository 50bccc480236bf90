"""`Snapshot` is the fleet with its live state, and `view` derives the part for one proxy.

The live state contains only differences from the files. A replica that is missing from `weights` uses its capacity, and
a route that is missing from `splits` uses the shares in the files. `render` uses a Snapshot without live state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial

from lbctl.ir.address import Address
from lbctl.ir.listeners import Listener
from lbctl.ir.pools import CircuitBreaker, Pool, Replica, header_values
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import Forward, RateLimit, Route, Share
from lbctl.ir.secrets import ApiKey, Secrets
from lbctl.ir.topology import Topology
from lbctl.ir.weight import Weight, from_capacity


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All input for any proxy, which is the fleet and its live state."""

    topology: Topology
    weights: Mapping[str, Mapping[str, Weight]] = field(default_factory=dict)
    """Maps each pool and replica to its weight."""
    drained: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Maps each pool to the replicas that get no new requests, in addition to the replicas drained in the files."""
    splits: Mapping[str, tuple[Share, ...]] = field(default_factory=dict)
    """Maps each route to its shares."""
    secrets: Secrets = field(default_factory=Secrets)
    """The contents of the key files."""
    addresses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Maps each host name of a fixed address to its IP addresses, for proxies that do not resolve names themselves."""
    out: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Maps each pool to its unhealthy replicas. Unhealthy replicas get no new requests, and clients with affinity also
    leave them."""
    traffic_log: Address | None = None
    """Address to which the fleet's proxies send their traffic log by syslog, or None for the fleet's own setting."""
    picker: Address | None = None
    """Address of the running picker, or None for the fleet's own setting."""
    picker_withheld: bool = False
    """Whether another process is using the picker's address, so that no proxy may use it."""
    own_picker_key: str = field(default="", repr=False)
    """Key that proxies send to the picker if the fleet does not name a file. If empty, no key is sent."""

    @property
    def picker_key(self) -> str:
        """Return the key that proxies send to the picker, or an empty string if they send none."""
        file = self.topology.control.picker_key_file
        if file is None:
            return self.own_picker_key
        secret = self.secrets.headers.get(file)
        return secret.value if secret is not None else ""


@dataclass(frozen=True, slots=True)
class View:
    """The part of the fleet for one proxy: its listeners, their routes, and the routes' pools.

    Limits are divided by the number of instances. All maps are ordered by name.
    """

    proxy: Proxy
    listeners: tuple[Listener, ...]
    routes: Mapping[str, Route]
    """The routes of the proxy's listeners, by name."""
    pools: Mapping[str, Pool]
    """The pools of the proxy's routes, by name."""
    weights: Mapping[str, tuple[Weight, ...]]
    """Maps each pool to one weight per replica, in the order of `pools[pool].replicas`."""
    drained: Mapping[str, frozenset[str]]
    """Maps each pool to the replicas that get no new requests, including the unhealthy ones."""
    api_keys: Mapping[str, tuple[ApiKey, ...]] = field(default_factory=dict)
    """Maps each route to the keys in its key file."""
    jwks: Mapping[str, str] = field(default_factory=dict)
    """Maps each route to the text in its JWKS file."""
    upstream_headers: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict, repr=False)
    """Maps each pool to the (name, value) pairs of the headers to set for it, excluding headers whose file cannot be
    read."""
    out: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Maps each pool to the unhealthy replicas among `drained`."""
    traffic_log: Address | None = None
    """Address to which the proxy sends its traffic log by syslog, or None if it sends no traffic log."""
    picker: Address | None = None
    """Address of the picker, or None if no pool uses the `pick` algorithm or the picker must not be used."""
    picker_tls: bool = False
    """Whether the picker requires TLS with the proxies' certificates."""
    ca_bundles: Mapping[str, str] = field(default_factory=dict)
    """Maps each path to the certificates in a CA bundle in PEM format, if the proxy's configuration contains them."""
    picker_key: str = field(default="", repr=False)
    """Key that the proxy sends to the picker with each request. If empty, no key is sent."""


def view(snapshot: Snapshot, proxy: Proxy) -> View:
    """Derive the part of the fleet for `proxy`.

    A proxy that is not named in the files gets the limits for a single instance.
    """
    topology = snapshot.topology
    picker = snapshot.picker or topology.control.picker_bind
    listeners = _listeners_of(topology, proxy)
    used_routes = {rule.route for listener in listeners for rule in listener.rules}
    routes = {item.name: _live_route(item, snapshot) for item in topology.routes if item.name in used_routes}
    used_pools = {name for route in routes.values() for name in pools_of(route)}
    instances = cache(partial(_instances, topology, proxy))
    by_route = {name: instances(frozenset(route.listeners)) for name, route in routes.items()}
    listeners_by_pool = _listeners_of_pools(topology)
    by_pool = {name: instances(frozenset(listeners_by_pool[name])) for name in used_pools}
    pools = {item.name: _divided_pool(item, by_pool[item.name]) for item in topology.pools if item.name in used_pools}
    return View(
        proxy=proxy,
        listeners=tuple(_divided_listener(listener, instances(frozenset({listener.name}))) for listener in listeners),
        routes={name: _divided_route(route, by_route[name]) for name, route in routes.items()},
        pools=pools,
        weights={name: weights_of(pool, snapshot) for name, pool in pools.items()},
        drained={name: drained_of(pool, snapshot) for name, pool in pools.items()},
        api_keys={name: _api_keys(route, snapshot.secrets) for name, route in routes.items() if route.auth},
        jwks={name: _jwks(route, snapshot.secrets) for name, route in routes.items() if route.auth},
        upstream_headers=_upstream_headers(pools.values(), snapshot.secrets),
        out={name: snapshot.out[name] for name in pools if snapshot.out.get(name)},
        traffic_log=_traffic_log(snapshot, proxy),
        picker=None
        if snapshot.picker_withheld or all(pool.balance.pick is None for pool in pools.values())
        else picker,
        ca_bundles=snapshot.secrets.ca_bundles if proxy.kubernetes else {},
        picker_tls=topology.control.picker_tls(picker) is not None,
        picker_key=snapshot.picker_key if any(pool.balance.pick is not None for pool in pools.values()) else "",
    )


def _traffic_log(snapshot: Snapshot, proxy: Proxy) -> Address | None:
    """Return the traffic-log address for a proxy in the fleet. Logs from other proxies would not be recognised.

    A proxy whose files are not written by `serve` sends a traffic log only if the fleet's files configure it, because
    the proxy's files were rendered elsewhere.
    """
    control = snapshot.topology.control
    if all(item.name != proxy.name for item in snapshot.topology.proxies):
        return None
    by_files = control.logs_bind if control.logs_written and control.logs_bind.port else None
    return (snapshot.traffic_log if proxy.reload is not None else None) or by_files


def weights_of(pool: Pool, snapshot: Snapshot) -> tuple[Weight, ...]:
    """Return the weights of the pool's replicas, in the replicas' order."""
    live = snapshot.weights.get(pool.name) or {}
    return tuple([live.get(replica.name) or from_capacity(replica.capacity) for replica in pool.replicas])


def drained_of(pool: Pool, snapshot: Snapshot) -> frozenset[str]:
    """Return the names of the pool's replicas that get no new requests."""
    drained_by_files = frozenset([replica.name for replica in pool.replicas if replica.drain])
    return drained_by_files | snapshot.drained.get(pool.name, frozenset()) | snapshot.out.get(pool.name, frozenset())


def is_drained(pool: Pool, replica: Replica, snapshot: Snapshot) -> bool:
    """Return whether the replica is drained by the files or an operator. A deep-health ejection is not a drain."""
    return replica.drain or replica.name in snapshot.drained.get(pool.name, frozenset())


def replica_counts(snapshot: Snapshot) -> dict[str, tuple[int, int]]:
    """Map each pool to its number of replicas and its number of drained replicas."""
    return {
        pool.name: (len(pool.replicas), sum(is_drained(pool, replica, snapshot) for replica in pool.replicas))
        for pool in snapshot.topology.pools
    }


def part(limit: int, instances: int) -> int:
    """Return one instance's share of a fleet-wide limit, rounded up and at least 1."""
    return max(1, -(-limit // instances))


def pools_of(route: Route) -> tuple[str, ...]:
    """Return every pool that a request on this route, or its mirrored copy, can reach."""
    if not isinstance(route.action, Forward):
        return ()
    mirror = route.action.mirror
    return (*route.action.pools, mirror.pool) if mirror else route.action.pools


def pools_reached(topology: Topology, proxy: Proxy) -> frozenset[str]:
    """Return the pools that requests through this proxy can reach, according to the shares in `topology`."""
    used_routes = routes_reached(topology, proxy)
    return frozenset(name for route in topology.routes if route.name in used_routes for name in pools_of(route))


def routes_reached(topology: Topology, proxy: Proxy) -> frozenset[str]:
    """Return the routes that requests through this proxy can take."""
    return frozenset(rule.route for listener in _listeners_of(topology, proxy) for rule in listener.rules)


def _listeners_of(topology: Topology, proxy: Proxy) -> tuple[Listener, ...]:
    return tuple(item for item in topology.listeners if not proxy.listeners or item.name in proxy.listeners)


def _instances(topology: Topology, proxy: Proxy, listeners: frozenset[str]) -> int:
    """Return the number of instances that share limits on `listeners`. A proxy outside the fleet counts alone."""
    is_named = proxy.name in {item.name for item in topology.proxies}
    return instances_of(topology, listeners) if is_named else max(1, proxy.instances)


def instances_of(topology: Topology, listeners: frozenset[str]) -> int:
    """Return the number of instances of all proxies in the fleet that serve one of `listeners`, at least 1."""
    sharing = [other for other in topology.proxies if not other.listeners or listeners & set(other.listeners)]
    return max(1, sum(item.instances for item in sharing))


def _listeners_of_pools(topology: Topology) -> dict[str, set[str]]:
    listeners: dict[str, set[str]] = {}
    for route in topology.routes:
        for pool in pools_of(route):
            listeners.setdefault(pool, set()).update(route.listeners)
    return listeners


def _live_route(route: Route, snapshot: Snapshot) -> Route:
    """Return the route with its live shares.

    A pool that is missing from the live split gets no requests but remains in the route, because it can return at any
    time.
    """
    shares = snapshot.splits.get(route.name)
    if shares is None or not isinstance(route.action, Forward):
        return route
    live_weights = {share.pool: share.weight for share in shares}
    file_pools = [share.pool for share in route.action.shares]
    shares = tuple(Share(pool, live_weights.get(pool, 0)) for pool in dict.fromkeys([*file_pools, *live_weights]))
    return replace(route, action=replace(route.action, shares=shares))


def _api_keys(route: Route, secrets: Secrets) -> tuple[ApiKey, ...]:
    api_keys = route.auth.api_keys if route.auth else None
    return secrets.api_keys.get(api_keys.file, ()) if api_keys else ()


def _upstream_headers(pools: Iterable[Pool], secrets: Secrets) -> dict[str, tuple[tuple[str, str], ...]]:
    return {pool.name: tuple(header_values(pool.sent, secrets.headers)) for pool in pools if pool.sent}


def key_of(pool: Pool, secrets: Secrets) -> tuple[str, str] | None:
    """Return the header and value of the key that the pool's replicas require, or None without a readable key."""
    header = pool.credentials
    secret = secrets.headers.get(header.file) if header is not None and header.file is not None else None
    return (header.name, secret.value) if header is not None and secret is not None else None


def _jwks(route: Route, secrets: Secrets) -> str:
    jwt = route.auth.jwt if route.auth else None
    return secrets.jwks.get(jwt.jwks_file, '{"keys": []}') if jwt else '{"keys": []}'


def _divided_listener(listener: Listener, instances: int) -> Listener:
    if listener.max_connections is None:
        return listener
    return replace(listener, max_connections=part(listener.max_connections, instances))


def _divided_route(route: Route, instances: int) -> Route:
    if instances == 1 or not route.rate_limits:
        return route
    return replace(route, rate_limits=tuple(divided_limit(limit, instances) for limit in route.rate_limits))


def divided_limit(limit: RateLimit, instances: int) -> RateLimit:
    """Return one instance's share of a fleet-wide limit."""
    if limit.concurrent:
        return replace(limit, concurrent=part(limit.concurrent, instances))
    return replace(
        limit,
        requests=part(limit.requests, instances),
        burst=part(limit.burst, instances),
        tenant_rates=tuple(replace(own, requests=part(own.requests, instances)) for own in limit.tenant_rates),
    )


def _divided_pool(pool: Pool, instances: int) -> Pool:
    if instances == 1 or pool.balance.queue is not None:
        return pool  # the picker counts all proxies' requests in a pool with a queue
    limits = pool.circuit_breaker
    divided = CircuitBreaker(
        max_connections=part(limits.max_connections, instances),
        max_pending_requests=part(limits.max_pending_requests, instances),
        max_requests=part(limits.max_requests, instances),
        max_retries=part(limits.max_retries, instances),
        replica_max_connections=_maybe(limits.replica_max_connections, instances),
        replica_max_requests=_maybe(limits.replica_max_requests, instances),
    )
    return replace(pool, circuit_breaker=divided)


def _maybe(limit: int | None, instances: int) -> int | None:
    return None if limit is None else part(limit, instances)

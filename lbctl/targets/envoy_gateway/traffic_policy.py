"""Pool settings, retries and limits as BackendTrafficPolicies.

A policy is attached to a rule, never to a Service, and applies to all of the rule's pools. If a split's pools differ,
the smallest limits apply; all other settings come from the pool with the largest share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.listeners import Listener
from lbctl.ir.pools import (
    ActiveCheck,
    CircuitBreaker,
    GrpcCheck,
    HashKey,
    HttpCheck,
    KubernetesDiscovery,
    Pool,
    SlowStart,
)
from lbctl.ir.routes import RateLimit, Route
from lbctl.ir.snapshot import View, part
from lbctl.targets.envoy_gateway import extension_policy
from lbctl.targets.envoy_gateway.context import API_VERSION, DESTINATION_HEADER, Context, rule_reference
from lbctl.targets.hosted import check_key
from lbctl.targets.manifests.durations import duration
from lbctl.targets.manifests.findings import needed_protocol, warning
from lbctl.targets.manifests.http_route import PlacedRule
from lbctl.targets.manifests.names import Parts, names, object_name
from lbctl.targets.manifests.objects import Objects, Tree

_POLICY = object_name("BackendTrafficPolicy")
_IDLE_TIMEOUTS = _RETRY_BUDGETS = _CHECK_PORTS = (1, 8)
"""First versions that support these settings."""
_ALGORITHMS = {"round_robin": "RoundRobin", "random": "Random"}
"""All other algorithms except hashing are rendered as LeastRequest."""
_NAMES = {"RoundRobin": "round_robin", "Random": "random", "ConsistentHash": "hash", "LeastRequest": "least_request"}
"""Name of each algorithm in the fleet file."""
_TRIGGERS = {
    "connect_failure": "connect-failure",
    "refused_stream": "refused-stream",
    "reset_before_request": "reset-before-request",
}
_UNITS = {1_000: "Second", 60_000: "Minute", 3_600_000: "Hour"}
"""Maps each rate period, in milliseconds, to its unit."""
_MIN_RETRIES = 3
"""Number of retries in flight that a budget always permits."""
_TABLE_SIZE = 65_537
_SIZES = ((1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki"))


def add(objects: Objects, context: Context) -> None:
    """Add a policy for each way in which a route forwards a listener's requests, with the rules that express it."""
    counts = _counts(context)
    placed: dict[Parts, list[PlacedRule]] = {}
    for rule in context.placed:
        if rule.way.shares:
            placed.setdefault((context.view.proxy.name, rule.listener.name, *rule.way.name), []).append(rule)
    for parts, name in names(_POLICY, placed).items():
        rules = placed[parts]
        route = rules[0].way.route
        spec = {"targetRefs": [rule_reference(rule) for rule in rules], **_spec(context, rules[0], counts)}
        objects.add(API_VERSION, "BackendTrafficPolicy", name, "route", ("routes", route.name), spec=spec)


def _counts(context: Context) -> Counter[str]:
    """Return the number of Envoy routes into which each route is converted.

    Each of them counts its requests separately.
    """
    counts: Counter[str] = Counter()
    for rule in context.placed:
        if rule.way.shares:
            counts[rule.way.route.name] += rule.copies
    return counts


def _spec(context: Context, rule: PlacedRule, counts: Counter[str]) -> Tree:
    view, route = context.view, rule.way.route
    pools = _by_share(view, rule)
    spec: Tree = {
        "loadBalancer": _load_balancer(context, rule, pools[0]),
        "timeout": _timeout(view, route, pools[0]),
        "circuitBreaker": _circuit_breaker(view, route, pools),
        "healthCheck": _health(view, pools[0]),
    }
    if limit := _body_limit(rule.listener, route, pools):
        spec["requestBuffer"] = {"limit": _size(limit)}
    if rates := [limit for limit in route.rate_limits if limit.requests and limit.by == "all"]:
        spec["rateLimit"] = _rate_limit(rates[0], counts[route.name])
    if retry := _retry(route, pools):
        spec["retry"] = retry
    return spec


def _by_share(view: View, rule: PlacedRule) -> list[Pool]:
    return [view.pools[name] for name in by_share(rule.way.shares)]


def by_share(shares: Mapping[str, float]) -> list[str]:
    """Return the pools of a rule, starting with the largest share."""
    return sorted(shares, key=lambda name: (-shares[name], name))


def balancing(view: View, shares: Mapping[str, float]) -> str:
    """Return the name of the algorithm that chooses a replica for requests of a rule with these shares."""
    if view.proxy.kubernetes and extension_policy.picked_pool(view, view.proxy.kubernetes, shares) is not None:
        return "pick"
    return _NAMES[str(_balance(view.pools[by_share(shares)[0]])["type"])]


# ── Parts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _load_balancer(context: Context, rule: PlacedRule, pool: Pool) -> Tree:
    tree = _balance(pool)
    if extension_policy.picked_pool(context.view, context.objects, rule.way.shares) is not None:
        tree.pop("zoneAware", None)
        tree["endpointOverride"] = {"extractFrom": [{"header": DESTINATION_HEADER}]}
    return tree


def _balance(pool: Pool) -> Tree:
    hashed = _hash(pool)
    tree: Tree = {"type": "ConsistentHash" if hashed else _ALGORITHMS.get(pool.balance.algorithm, "LeastRequest")}
    if hashed:
        return {**tree, "consistentHash": {**hashed, "tableSize": _TABLE_SIZE}}
    if pool.slow_start is not None and tree["type"] != "Random":
        tree["slowStart"] = {"window": duration(pool.slow_start.window)}
    if prefers_zone(pool):
        tree["zoneAware"] = {"preferLocal": {"minEndpointsThreshold": 1}}
    return tree


def prefers_zone(pool: Pool) -> bool:
    """Return whether requests prefer replicas in the gateway's zone. No hash does."""
    return pool.locality is not None and pool.locality.prefer == "zone" and not _hash(pool)


def _hash(pool: Pool) -> Tree:
    """Return the hash key; empty for other algorithms. An affinity cookie is hashed too."""
    if pool.affinity is not None:
        cookie = {"name": pool.affinity.cookie, "ttl": duration(pool.affinity.ttl)}
        return {"type": "Cookie", "cookie": cookie}
    key = pool.balance.key if pool.balance.algorithm == "hash" else None
    return _hash_key(key) if key is not None else {}


def _hash_key(key: HashKey) -> Tree:
    if key.kind == "header":
        return {"type": "Headers", "headers": [{"name": key.name}]}
    if key.kind == "cookie":
        return {"type": "Cookie", "cookie": {"name": key.name}}
    if key.kind == "query":
        return {"type": "QueryParams", "queryParams": [{"name": key.name}]}
    return {"type": "SourceIP"} if key.kind == "source_ip" else {}


def _timeout(view: View, route: Route, pool: Pool) -> Tree:
    http: Tree = {"requestTimeout": duration(route.request_timeout or 0)}
    if view.proxy.version >= _IDLE_TIMEOUTS:
        http["streamIdleTimeout"] = duration(route.idle_timeout or 0)
    if pool.connections.idle is not None:
        http["connectionIdleTimeout"] = duration(pool.connections.idle)
    return {"tcp": {"connectTimeout": duration(pool.connect_timeout)}, "http": http}


def _circuit_breaker(view: View, route: Route, pools: Sequence[Pool]) -> Tree:
    """Return the limits of a rule. The view's limits are already one instance's share."""
    limits = [pool.circuit_breaker for pool in pools]
    tree: Tree = {
        "maxConnections": min(item.max_connections for item in limits),
        "maxPendingRequests": min(item.max_pending_requests for item in limits),
        "maxParallelRequests": min(item.max_requests for item in limits),
        "maxParallelRetries": min(item.max_retries for item in limits),
    }
    per_connection = [pool.connections.max_requests for pool in pools if pool.connections.max_requests is not None]
    if per_connection:
        tree["maxRequestsPerConnection"] = min(per_connection)
    if per_replica := [limit for pool in pools if (limit := _replica_connections(pool)) is not None]:
        tree["perEndpoint"] = {"maxConnections": min(per_replica)}
    if route.retry.budget is not None and view.proxy.version >= _RETRY_BUDGETS:
        share = Fraction(str(route.retry.budget)) / 100
        percent = {"numerator": share.numerator, "denominator": share.denominator}
        tree["retryBudget"] = {"percent": percent, "minRetryConcurrency": _MIN_RETRIES}
    return tree


def _replica_connections(pool: Pool) -> int | None:
    """Return the maximum number of connections to a replica. In HTTP/1.1, each connection carries one request."""
    limits: CircuitBreaker = pool.circuit_breaker
    requests = None if _may_use_http2(pool) else limits.replica_max_requests
    return min((item for item in (requests, limits.replica_max_connections) if item is not None), default=None)


def _may_use_http2(pool: Pool) -> bool:
    """Return whether a connection to the pool may carry several requests.

    Only a Backend can restrict TLS to HTTP/1.1.
    """
    is_negotiated = pool.tls is not None and isinstance(pool.discovery, KubernetesDiscovery)
    return pool.protocol != "http1" or is_negotiated


def _body_limit(listener: Listener, route: Route, pools: Sequence[Pool]) -> int | None:
    """Return the maximum size of a body in bytes. The limit requires buffering, so streams are exempt."""
    is_stream = route.websocket or any(pool.protocol == "grpc" for pool in pools)
    return None if is_stream else listener.max_body


def _size(size: int) -> str:
    return next((f"{size // unit}{suffix}" for unit, suffix in _SIZES if size % unit == 0), str(size))


def _rate_limit(limit: RateLimit, counters: int) -> Tree:
    rate = {"requests": part(limit.requests, counters), "unit": _UNITS[limit.per]}
    return {"type": "Local", "local": {"rules": [{"limit": rate}]}}


def _health(view: View, pool: Pool) -> Tree:
    """Return the health checks, without panic mode: unhealthy replicas get no requests, even if few are healthy."""
    tree: Tree = {"panicThreshold": 1 if pool.fail_open else 0}
    if pool.active is not None and not _lacking(view, pool, pool.active):
        tree["active"] = _active(pool, pool.active)
    if pool.passive is not None:
        check = pool.passive
        tree["passive"] = {
            "splitExternalLocalOriginErrors": True,
            "consecutive5XxErrors": check.consecutive_5xx,
            "consecutiveLocalOriginFailures": check.consecutive_connect_failures,
            "failurePercentageThreshold": round(check.error_percent),
            "interval": duration(check.error_window),
            "baseEjectionTime": duration(check.ejection_time),
            "maxEjectionPercent": round(check.max_ejection),
        }
    return tree


def _active(pool: Pool, check: ActiveCheck) -> Tree:
    tree: Tree = {
        "interval": duration(check.interval),
        "timeout": duration(check.timeout),
        "unhealthyThreshold": check.unhealthy_threshold,
        "healthyThreshold": check.healthy_threshold,
    }
    if check.port is not None:
        tree["overrides"] = {"port": check.port}
    probe = check.probe
    if isinstance(probe, HttpCheck):
        http: Tree = {"path": probe.path, "expectedStatuses": sorted(set(probe.statuses))}
        if probe.host is not None:
            http["hostname"] = probe.host
        if probe.body_contains is not None:
            http["expectedResponse"] = {"type": "Text", "text": probe.body_contains}
        return {"type": "HTTP", **tree, "http": http}
    if isinstance(probe, GrpcCheck) and pool.protocol != "http1":
        return {"type": "GRPC", **tree, **({"grpc": {"service": probe.service}} if probe.service else {})}
    return {"type": "TCP", **tree, "tcp": {}}


def _lacking(view: View, pool: Pool, check: ActiveCheck) -> str:
    """Return the reason why Envoy Gateway cannot run the active check; empty if it can."""
    if check.port is not None and view.proxy.version < _CHECK_PORTS:
        return "before 1.8, checks use the same port as requests"
    if check.port is not None and pool.tls is not None:
        return "if a pool uses TLS, its checks use TLS on every port"
    if any(replica.agent_port is not None for replica in pool.replicas):
        return "all replicas in a pool are checked on the same port"
    if check_key(view, pool) is not None:
        return "checks cannot send headers, so replicas that require a key would reject them"
    if isinstance(check.probe, HttpCheck) and check.probe.host is not None and ":" in check.probe.host:
        return "the host of a check cannot contain a port"
    return ""


def _retry(route: Route, pools: Sequence[Pool]) -> Tree:
    """Return the retries of a rule. Without triggers, Envoy Gateway would retry requests after every 503 response."""
    retry = route.retry
    triggers = [_TRIGGERS[item] for item in retry.when if item in _TRIGGERS]
    statuses: list[int] = []
    if "replica_busy" in retry.when:
        if any(pool.protocol != "grpc" for pool in pools):
            statuses = sorted(retry.busy_statuses)
            triggers += ["retriable-status-codes"] if statuses else []
        if any(pool.protocol == "grpc" for pool in pools):
            triggers.append("unavailable")
    triggers += ["reset"] if retry.idempotent else []
    attempts = retry.attempts if triggers else 0
    one_try = {"timeout": duration(route.attempt_timeout)} if route.attempt_timeout is not None else {}
    if not attempts:
        on: Tree = {"triggers": ["connect-failure"], "httpStatusCodes": []}
        return {"numRetries": 0, "retryOn": on, "perRetry": one_try} if one_try else {}
    base = max(1, retry.backoff.base)
    pauses = {"baseInterval": duration(base), "maxInterval": duration(max(base, retry.backoff.max))}
    return {
        "numRetries": attempts,
        "retryOn": {"triggers": triggers, "httpStatusCodes": statuses},
        "perRetry": {**one_try, "backOff": pauses},
    }


# ── Findings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def diagnostics(context: Context) -> Iterator[Diagnostic]:
    """Yield the settings that a policy expresses only in part."""
    for pool in context.view.pools.values():
        yield from _pool_warnings(context.view, pool)
    yield from _picked_zones(context)
    yield from _rate_warnings(context)
    yield from _splits(context)


def _pool_warnings(view: View, pool: Pool) -> Iterator[Diagnostic]:
    path = ("pools", pool.name)
    if pool.active is not None and (reason := _lacking(view, pool, pool.active)):
        feature = _check_feature(pool, pool.active)
        message = f"Envoy Gateway cannot run this check: {reason}. Only passive checks apply"
        yield warning(feature, message, (*path, "health", "agent" if pool.agent else "active"))
    elif pool.active is not None and isinstance(pool.active.probe, GrpcCheck) and pool.protocol == "http1":
        message = "the replicas do not use HTTP/2, so a check only opens a connection"
        yield warning("pool.health.grpc", message, (*path, "health", "active"))
    if pool.locality is not None and pool.locality.prefer != "zone":
        message = "Envoy Gateway can prefer zones, but not regions"
        yield warning("pool.locality", message, (*path, "locality", "prefer"))
    elif pool.locality is not None and _hash(pool):
        message = "Envoy Gateway does not prefer zones with a hash"
        yield warning("pool.locality", message, (*path, "locality"))
    elif pool.locality is not None and pool.locality.spill_below != 70:
        message = "Envoy's own rule decides when requests leave the zone"
        yield warning("pool.locality", message, (*path, "locality", "spill_below"))
    if pool.circuit_breaker.replica_max_requests is not None and _may_use_http2(pool):
        message = "Envoy Gateway limits only connections to a replica, and an HTTP/2 connection carries many requests"
        yield warning("pool.circuit_breaker.per_replica", message, (*path, "circuit_breaker"))
    yield from needed_protocol(pool)
    yield from _slow_start(pool)


def _picked_zones(context: Context) -> Iterator[Diagnostic]:
    for rule in context.placed:
        pool = extension_policy.picked_pool(context.view, context.objects, rule.way.shares)
        if pool is not None and prefers_zone(pool):
            message = "Envoy Gateway does not prefer zones with the picker"
            yield warning("pool.locality", message, ("pools", pool.name, "locality"))


def _slow_start(pool: Pool) -> Iterator[Diagnostic]:
    """Yield the parts of a ramp that are ignored; nothing for the default ramp."""
    ramp, default = pool.slow_start, SlowStart()
    path = ("pools", pool.name, "slow_start")
    if ramp is None or ramp == default:
        return
    if _hash(pool) or pool.balance.algorithm == "random":
        message = "Envoy Gateway supports slow start only with round_robin and least_request"
        yield warning("pool.slow_start", message, path)
    elif (ramp.min_weight, ramp.aggression) != (default.min_weight, default.aggression):
        message = "Envoy Gateway has no setting for the ramp's shape: only the window applies"
        yield warning("pool.slow_start", message, path)


def _check_feature(pool: Pool, check: ActiveCheck) -> str:
    if pool.agent is not None:
        return "pool.health.agent"
    if isinstance(check.probe, HttpCheck):
        return "pool.health.http"
    return "pool.health.grpc" if isinstance(check.probe, GrpcCheck) else "pool.health.tcp"


def _rate_warnings(context: Context) -> Iterator[Diagnostic]:
    for name, count in _counts(context).items():
        limits = context.view.routes[name].rate_limits if name in context.view.routes else ()
        for index, limit in enumerate(limits):
            if not limit.requests or limit.by != "all":
                continue
            path = ("routes", name, "rate_limit", index)
            if count > 1:
                message = (
                    f"Envoy Gateway counts the requests of each match separately, and this route has {count}: each "
                    f"match admits 1/{count} of the rate"
                )
                hint = "use fewer hosts, methods, models, pins and listeners for the route"
                yield warning("route.rate_limit", message, path, hint)
            if limit.burst and limit.burst != limit.requests:
                message = "Envoy Gateway does not support bursts: a client can send all of a period's requests at once"
                yield warning("route.rate_limit", message, (*path, "burst"), "use a shorter period")


def _splits(context: Context) -> Iterator[Diagnostic]:
    """Yield the pools of a split whose settings are ignored."""
    for rule in context.placed:
        pools = _by_share(context.view, rule) if len(rule.way.shares) > 1 else []
        for pool in pools[1:]:
            if different := list(_differences(context.view, rule, pools[0], pool)):
                message = (
                    f"Envoy Gateway has one policy for all pools in a rule: {' and '.join(different)} from pool "
                    f"{pools[0].name} also apply to pool {pool.name}"
                )
                hint = "use the same settings in both pools"
                yield warning("route.split", message, ("routes", rule.way.route.name, "split"), hint)


def _differences(view: View, rule: PlacedRule, first: Pool, other: Pool) -> Iterator[str]:
    if _balance(first) != _balance(other):
        yield "the balancing"
    if _timeout(view, rule.way.route, first) != _timeout(view, rule.way.route, other):
        yield "the timeouts"
    if _health(view, first) != _health(view, other):
        yield "the health checks"

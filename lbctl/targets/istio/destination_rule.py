"""How an Istio gateway treats a pool, as the traffic policy of a DestinationRule.

Omitted settings take the mesh's defaults, so everything that the mesh could configure is written.
"""

from __future__ import annotations

from lbctl.base.hosts import is_ip
from lbctl.base.system_ca import PLACES
from lbctl.ir.pools import DnsDiscovery, HashKey, PassiveCheck, Pool, PoolTls, SlowStart
from lbctl.targets.istio.failover import Failover
from lbctl.targets.manifests.durations import duration
from lbctl.targets.manifests.objects import Tree

MIN_AGGRESSION = 1.0
"""Minimum `aggression` of a warm-up that Istio accepts."""
_MAGLEV_SIZE = 65_537
"""Size of the consistent-hashing table, which Istio requires: Envoy's default."""
_UNLIMITED = 365 * 24 * 3_600_000
"""Idle timeout, in milliseconds, of connections without a limit. Without this timeout, Envoy closes such connections
after an hour."""
_MIN_RETRIES = 3
LEAST_REQUEST = "LEAST_REQUEST"
"""Algorithm of pools that neither use hashing nor set another algorithm."""
_WARMED_UP = (LEAST_REQUEST, "ROUND_ROBIN")


def traffic_policy(pool: Pool, host: str, failover: Failover, budget: float | None, credential: str | None) -> Tree:
    """Return the traffic policy of a pool.

    `budget` limits retries to a percentage of requests. `credential` is the Secret that contains the TLS certificates.
    """
    tree: Tree = {
        "loadBalancer": _load_balancer(pool, failover),
        "connectionPool": _connection_pool(pool),
        "outlierDetection": _outlier_detection(pool.passive),
    }
    if budget is not None:
        tree["retryBudget"] = {"percent": _number(budget), "minRetryConcurrency": _MIN_RETRIES}
    if pool.tls is not None:
        tree["tls"] = _tls(pool, pool.tls, host, credential)
    return tree


def needs_secret(tls: PoolTls) -> bool:
    """Return whether the gateway needs a Secret, for a client certificate or the replicas' CA."""
    return tls.certificate is not None or (tls.ca is not None and tls.ca not in PLACES)


# ── Load balancing ───────────────────────────────────────────────────────────────────────────────────────────────────


def is_uneven(pool: Pool) -> bool:
    """Return whether the capacities of the pool's replicas differ."""
    return len({item.capacity for item in pool.replicas}) > 1


def consistent_hash(pool: Pool) -> Tree | None:
    """Return a request's hash key; None if the pool does not use hashing. Affinity replaces the algorithm."""
    if pool.affinity is not None:
        return {"httpCookie": {"name": pool.affinity.cookie, "path": "/", "ttl": _duration(pool.affinity.ttl)}}
    if pool.balance.algorithm != "hash" or pool.balance.key is None:
        return None
    return _hash_key(pool.balance.key)


def _hash_key(key: HashKey) -> Tree | None:
    keys: dict[str, Tree] = {
        "header": {"httpHeaderName": key.name},
        "cookie": {"httpCookie": {"name": key.name}},
        "query": {"httpQueryParameterName": key.name},
        "source_ip": {"useSourceIp": True},
    }
    return keys.get(key.kind)


def algorithm(pool: Pool) -> str:
    """Return the algorithm of a pool; empty if it uses hashing.

    RANDOM ignores weights, and ROUND_ROBIN yields the same shares that weighted random choices would.
    """
    if consistent_hash(pool) is not None:
        return ""
    if pool.balance.algorithm == "round_robin" or (pool.balance.algorithm == "random" and is_uneven(pool)):
        return "ROUND_ROBIN"
    return "RANDOM" if pool.balance.algorithm == "random" else LEAST_REQUEST


def _load_balancer(pool: Pool, failover: Failover) -> Tree:
    key, simple = consistent_hash(pool), algorithm(pool)
    tree: Tree = (
        {"simple": simple} if key is None else {"consistentHash": {**key, "maglev": {"tableSize": _MAGLEV_SIZE}}}
    )
    tree["localityLbSetting"] = failover.setting()
    if pool.slow_start is not None and pool.slow_start.window and simple in _WARMED_UP:
        tree["warmup"] = _warmup(pool.slow_start)
    return tree


def _warmup(ramp: SlowStart) -> Tree:
    tree: Tree = {"duration": _duration(ramp.window), "minimumPercent": _number(ramp.min_weight)}
    if ramp.aggression > MIN_AGGRESSION:
        tree["aggression"] = _number(ramp.aggression)
    return tree


# ── Connections and faults ───────────────────────────────────────────────────────────────────────────────────────────


def _connection_pool(pool: Pool) -> Tree:
    limits, connections = pool.circuit_breaker, pool.connections
    http: Tree = {
        "h2UpgradePolicy": "DO_NOT_UPGRADE" if pool.protocol == "http1" else "UPGRADE",
        "http1MaxPendingRequests": limits.max_pending_requests,
        "http2MaxRequests": limits.max_requests,
        "maxRetries": limits.max_retries,
        "idleTimeout": _duration(_UNLIMITED if connections.idle is None else connections.idle),
    }
    if connections.max_requests is not None:
        http["maxRequestsPerConnection"] = connections.max_requests
    tcp: Tree = {"connectTimeout": _duration(pool.connect_timeout), "maxConnections": limits.max_connections}
    return {"tcp": tcp, "http": http}


def _outlier_detection(check: PassiveCheck | None) -> Tree:
    """Return the outlier detection, without panic: an ejected replica gets no requests, even if few replicas are left.

    Without a check it ejects no replica, but Istio uses lower priorities only if outlier detection is configured. A
    maximum of 0 % would mean Istio's default, 10 %.
    """
    if check is None or not check.max_ejection:
        return {"consecutive5xxErrors": 0, "consecutiveGatewayErrors": 0, "minHealthPercent": 0}
    return {
        "splitExternalLocalOriginErrors": True,
        "consecutive5xxErrors": check.consecutive_5xx,
        "consecutiveGatewayErrors": 0,
        "consecutiveLocalOriginFailures": check.consecutive_connect_failures,
        "interval": _duration(check.error_window),
        "baseEjectionTime": _duration(check.ejection_time),
        "maxEjectionPercent": max(1, round(check.max_ejection)),
        "minHealthPercent": 0,
    }


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _tls(pool: Pool, tls: PoolTls, host: str, credential: str | None) -> Tree:
    """Return the TLS settings for connections to the replicas of a pool.

    Without `ca`, the certificate of a replica is not verified. With `ca`, the certificate must also contain one of the
    host names. Without an SNI name, Istio would use the client's Host header, even to verify the certificate.
    """
    names = _server_names(pool, tls)
    tree: Tree = {"mode": "SIMPLE" if tls.certificate is None else "MUTUAL"}
    if credential is not None:
        tree["credentialName"] = credential
    tree["sni"] = names[0] if len(names) == 1 else host
    if tls.ca is None:
        tree["insecureSkipVerify"] = True
    elif names:
        tree["subjectAltNames"] = names
    return tree


def _server_names(pool: Pool, tls: PoolTls) -> list[str]:
    """Return the configured server name, or else the replicas' host names; empty if one of them is an IP address."""
    if tls.server_name:
        return [tls.server_name]
    hosts = {item.address.host for item in pool.replicas}
    if isinstance(pool.discovery, DnsDiscovery):
        hosts = {pool.discovery.name}
    return [] if any(map(is_ip, hosts)) else sorted(hosts)


def _duration(milliseconds: int) -> str:
    """Format a duration. Istio does not accept durations below one millisecond."""
    return duration(max(1, milliseconds))


def _number(value: float) -> int | float:
    return int(value) if value.is_integer() else value

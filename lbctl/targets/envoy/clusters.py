"""Pools as clusters: load balancing, circuit breakers and connections.

The endpoints of these clusters are in `endpoints`.
"""

from __future__ import annotations

from collections.abc import Sequence

from envoy.config.cluster.v3 import cluster_pb2
from envoy.extensions.clusters.aggregate.v3 import cluster_pb2 as aggregate_pb2
from envoy.extensions.clusters.dns.v3 import dns_cluster_pb2
from envoy.extensions.network.dns_resolver.cares.v3 import cares_dns_resolver_pb2
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2

from lbctl.base.hosts import is_ip
from lbctl.ir.address import Address
from lbctl.ir.pools import CircuitBreaker, DnsDiscovery, Pool
from lbctl.targets.envoy import health, hosted, tls
from lbctl.targets.envoy.cluster_names import Fallback, PlannedCluster, variant
from lbctl.targets.envoy.endpoints import Placement
from lbctl.targets.envoy.protos import address, duration, extension, metadata, pack
from lbctl.targets.hosted import HostedPool

HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
BUFFER = 65_536
"""Buffer size for one connection in each direction, in bytes.

If a reader is slow, the replica soon stops sending, so thousands of streams need little memory. The copy of a request
that is kept for retries is buffered separately (`request_body_buffer_limit`).
"""
_MIN_RETRIES = 3
_REFRESH = 10_000
_PING = {"interval": {"seconds": 30}, "timeout": {"seconds": 5}}
"""Detects within 35 s that the peer of a silent HTTP/2 stream is dead."""


def cluster(upstream: PlannedCluster, keys: tls.SecretSource) -> cluster_pb2.Cluster:
    """Return the cluster without its endpoints. The caller adds the endpoints or their source."""
    pool = upstream.pool
    message = cluster_pb2.Cluster(
        name=upstream.name,
        connect_timeout=duration(pool.connect_timeout),
        per_connection_buffer_limit_bytes={"value": BUFFER},
        ignore_health_on_host_removal=True,
        circuit_breakers=_breakers(pool.circuit_breaker, upstream),
        typed_extension_protocol_options={HTTP_OPTIONS: pack(_options(upstream, keys))},
        metadata=metadata({**_pool_metadata(pool), **_retry_after(pool, upstream.placement)}),
        health_checks=[health.health_check(pool, pool.active, upstream.check_key)] if pool.active else None,
        outlier_detection=health.outlier_detection(pool.passive) if pool.passive else None,
        transport_socket=tls.upstream(pool, pool.tls, keys) if pool.tls else None,
        transport_socket_matches=[tls.for_checks(health.IN_CLEAR)] if health.in_clear(pool) else None,
        **_endpoint_source(pool),
    )
    _balance(message, pool, upstream.placement)
    return message


def fallback(item: Fallback, keys: tls.SecretSource) -> cluster_pb2.Cluster:
    """Return the aggregate cluster of a pool and its fallback.

    Envoy counts retries at this cluster and everything else at its two member clusters. The default limit would allow
    three retries. If one of the pools is a hosted API, Envoy applies this cluster's filters.
    """
    filters = hosted.http_filters(item.hosted, keys)
    options = {HTTP_OPTIONS: pack(_protocol(item.pool, filters))} if filters else None
    retries = {"value": item.pool.circuit_breaker.max_retries}
    config = aggregate_pb2.ClusterConfig(clusters=[item.first, item.second])
    return cluster_pb2.Cluster(
        name=item.name,
        connect_timeout=duration(item.pool.connect_timeout),
        lb_policy="CLUSTER_PROVIDED",
        cluster_type=extension("envoy.clusters.aggregate", config),
        circuit_breakers={"thresholds": [{"max_retries": retries}]},
        typed_extension_protocol_options=options,
        metadata=metadata(_pool_metadata(item.pool)),
    )


def collector(name: str, server: Address) -> cluster_pb2.Cluster:
    """Return a trace collector's cluster (gRPC without TLS), including its endpoint."""
    options = http_protocol_options_pb2.HttpProtocolOptions(explicit_http_config={"http2_protocol_options": {}})
    return cluster_pb2.Cluster(
        name=name,
        connect_timeout={"seconds": 1},
        typed_extension_protocol_options={HTTP_OPTIONS: pack(options)},
        load_assignment={
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(server)}}]}],
        },
        **_discovery_type([server], _REFRESH),
    )


def _pool_metadata(pool: Pool) -> dict[str, str | bool]:
    return {"pool": pool.name, "variant": variant(pool)}


def _retry_after(pool: Pool, placement: Placement) -> dict[str, str | bool]:
    if pool.load_shedding is None or not placement.sheds:
        return {}
    return {"retry_after": str(pool.load_shedding.retry_after_seconds)}


def _balance(message: cluster_pb2.Cluster, pool: Pool, placement: Placement) -> None:
    """Configure load balancing without panic mode: unhealthy replicas get no requests, even if few are healthy.

    With `fail_open`, panic mode begins when no replica is healthy, which is configured as below one percent because
    Envoy rounds the threshold.
    """
    common = message.common_lb_config
    common.healthy_panic_threshold.value = 1 if pool.fail_open else 0
    common.healthy_panic_threshold.SetInParent()
    common.update_merge_window.SetInParent()
    common.ignore_new_hosts_until_first_hc = pool.active is not None
    if pool.load_shedding is not None and placement.sheds:
        common.healthy_panic_threshold.value = pool.load_shedding.min_healthy
        common.zone_aware_lb_config.fail_traffic_on_panic = True
    message.lb_policy = cluster_pb2.Cluster.LbPolicy.Value(policy(pool))
    if pool.balance.algorithm == "hash":
        if pool.balance.bounded_load:
            factor = round(pool.balance.bounded_load * 100)
            common.consistent_hashing_lb_config.hash_balance_factor.value = factor
    elif pool.slow_start and message.lb_policy == cluster_pb2.Cluster.ROUND_ROBIN:
        slow_start(message.round_robin_lb_config.slow_start_config, pool)
    elif pool.slow_start and message.lb_policy == cluster_pb2.Cluster.LEAST_REQUEST:
        slow_start(message.least_request_lb_config.slow_start_config, pool)


def policy(pool: Pool) -> str:
    """Return the pool's load-balancing policy.

    RANDOM ignores weights. If weights differ, ROUND_ROBIN yields the same shares that weighted random choices would.
    With `fail_open`, the weights of drained replicas differ. When a replica leaves, a ring hash is rebuilt completely,
    and other replicas' keys move too. With Maglev, almost no other keys move.
    """
    if pool.balance.algorithm == "random":
        return "ROUND_ROBIN" if uneven(pool) or pool.fail_open else "RANDOM"
    return {"round_robin": "ROUND_ROBIN", "hash": "MAGLEV"}.get(pool.balance.algorithm, "LEAST_REQUEST")


def uneven(pool: Pool) -> bool:
    """Return whether the capacities of the pool's replicas differ."""
    return len({item.capacity for item in pool.replicas}) > 1


def slow_start(message: cluster_pb2.Cluster.SlowStartConfig, pool: Pool) -> None:
    """Write the pool's slow start, if it has one."""
    if pool.slow_start is None:
        return
    message.slow_start_window.CopyFrom(duration(pool.slow_start.window))
    message.aggression.default_value = pool.slow_start.aggression
    message.aggression.runtime_key = f"lbctl.slow_start.{pool.name}.aggression"
    message.min_weight_percent.value = pool.slow_start.min_weight


def _breakers(limits: CircuitBreaker, upstream: PlannedCluster) -> dict[str, object]:
    thresholds: dict[str, object] = {
        "max_connections": {"value": limits.max_connections},
        "max_pending_requests": {"value": limits.max_pending_requests},
        "max_requests": {"value": limits.max_requests},
        "max_retries": {"value": limits.max_retries},
        "track_remaining": True,
    }
    if upstream.retry_budget is not None:
        thresholds["retry_budget"] = {
            "budget_percent": {"value": upstream.retry_budget},
            "min_retry_concurrency": {"value": _MIN_RETRIES},
        }
    connections = _replica_connections(limits, upstream.pool)
    if connections is None:
        return {"thresholds": [thresholds]}
    return {"thresholds": [thresholds], "per_host_thresholds": [{"max_connections": {"value": connections}}]}


def _replica_connections(limits: CircuitBreaker, pool: Pool) -> int | None:
    """Return the maximum number of connections to one replica, or None for no limit.

    HTTP/1.1 carries one request per connection, so a request limit is a connection limit. HTTP/2 needs one connection
    with that many streams.
    """
    requests, connections = limits.replica_max_requests, limits.replica_max_connections
    if pool.protocol == "http1":
        return min((item for item in (requests, connections) if item is not None), default=None)
    return connections if requests is None else 1


def _filters(pool: HostedPool | None, keys: tls.SecretSource) -> list[dict[str, object]]:
    return hosted.http_filters([pool], keys) if pool else []


def _options(upstream: PlannedCluster, keys: tls.SecretSource) -> http_protocol_options_pb2.HttpProtocolOptions:
    options = _protocol(upstream.pool, _filters(upstream.hosted, keys))
    if upstream.pool.passive and upstream.busy_statuses:
        options.outlier_detection.CopyFrom(health.faults(upstream.busy_statuses))
    return options


def _protocol(pool: Pool, filters: list[dict[str, object]]) -> http_protocol_options_pb2.HttpProtocolOptions:
    max_requests, max_streams = pool.connections.max_requests, pool.circuit_breaker.replica_max_requests
    http2 = {
        "connection_keepalive": _PING,
        "max_concurrent_streams": None if max_streams is None else {"value": max_streams},
    }
    explicit = {"http_protocol_options": {}} if pool.protocol == "http1" else {"http2_protocol_options": http2}
    common = {
        "idle_timeout": duration(pool.connections.idle or 0),
        "max_requests_per_connection": None if max_requests is None else {"value": max_requests},
    }
    return http_protocol_options_pb2.HttpProtocolOptions(
        common_http_protocol_options=common, explicit_http_config=explicit, http_filters=filters
    )


def _endpoint_source(pool: Pool) -> dict[str, object]:
    if isinstance(pool.discovery, DnsDiscovery) and not pool.replicas:
        dns = pool.discovery
        return _discovery_type([Address(dns.name, dns.port)], dns.refresh, dns.resolvers)
    return _discovery_type([item.address for item in pool.replicas], _REFRESH)


def _discovery_type(addresses: Sequence[Address], refresh: int, resolvers: Sequence[Address] = ()) -> dict[str, object]:
    """Return the discovery type: fixed addresses, or host names that are resolved every `refresh` ms.

    Each of a host name's addresses is treated as a replica.
    """
    if all(item.path or is_ip(item.host) for item in addresses):
        return {"type": "STATIC"}
    config = cares_dns_resolver_pb2.CaresDnsResolverConfig(resolvers=[address(item) for item in resolvers])
    dns = dns_cluster_pb2.DnsCluster(
        dns_refresh_rate=duration(refresh),
        dns_lookup_family="V4_PREFERRED",
        all_addresses_in_single_endpoint=False,
        typed_dns_resolver_config=extension("envoy.network.dns_resolver.cares", config) if resolvers else None,
    )
    return {"cluster_type": extension("envoy.cluster.dns", dns)}

"""Pools as clusters: balancing, breakers, connections. The replicas themselves are in `endpoints`."""

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
from lbctl.targets.envoy import health, tls
from lbctl.targets.envoy.endpoints import Placement
from lbctl.targets.envoy.plan import Fallback, Upstream, variant
from lbctl.targets.envoy.protos import address, duration, extension, metadata, pack

HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
BUFFER = 65_536
"""Bytes held for one connection in each direction: a slow reader of a stream stops the replica early, and thousands of
streams cost little. What a retry needs of the request is held apart from it (`request_body_buffer_limit`)."""
_MIN_RETRIES = 3
_REFRESH = 10_000
_PING = {"interval": {"seconds": 30}, "timeout": {"seconds": 5}}
"""A dead peer under a silent HTTP/2 stream is found within 35 s."""


def cluster(upstream: Upstream, keys: tls.Keys) -> cluster_pb2.Cluster:
    """The cluster without its endpoints; whoever delivers them adds them, or says where they come from."""
    pool = upstream.pool
    message = cluster_pb2.Cluster(
        name=upstream.name,
        connect_timeout=duration(pool.connect_timeout),
        per_connection_buffer_limit_bytes={"value": BUFFER},
        ignore_health_on_host_removal=True,
        circuit_breakers=_breakers(pool.circuit_breaker, upstream),
        typed_extension_protocol_options={HTTP_OPTIONS: pack(_protocol(pool))},
        metadata=metadata({**_marks(pool), **_retry_after(pool, upstream.placement)}),
        health_checks=[health.health_check(pool, pool.active)] if pool.active else None,
        outlier_detection=health.outlier_detection(pool.passive) if pool.passive else None,
        transport_socket=tls.upstream(pool, pool.tls, keys) if pool.tls else None,
        transport_socket_matches=[tls.for_checks(health.IN_CLEAR)] if health.in_clear(pool) else None,
        **_members(pool),
    )
    _balance(message, pool, upstream.placement)
    return message


def fallback(item: Fallback) -> cluster_pb2.Cluster:
    """Envoy counts retries here and everything else at the clusters behind; without a word it would allow three."""
    retries = {"value": item.pool.circuit_breaker.max_retries}
    config = aggregate_pb2.ClusterConfig(clusters=[item.first, item.second])
    return cluster_pb2.Cluster(
        name=item.name,
        connect_timeout=duration(item.pool.connect_timeout),
        lb_policy="CLUSTER_PROVIDED",
        cluster_type=extension("envoy.clusters.aggregate", config),
        circuit_breakers={"thresholds": [{"max_retries": retries}]},
        metadata=metadata(_marks(item.pool)),
    )


def collector(name: str, where: Address) -> cluster_pb2.Cluster:
    """Where traces go: gRPC, without TLS. With its endpoint, since it is no pool."""
    options = http_protocol_options_pb2.HttpProtocolOptions(explicit_http_config={"http2_protocol_options": {}})
    return cluster_pb2.Cluster(
        name=name,
        connect_timeout={"seconds": 1},
        typed_extension_protocol_options={HTTP_OPTIONS: pack(options)},
        load_assignment={
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(where)}}]}],
        },
        **_kind([where], _REFRESH),
    )


def _marks(pool: Pool) -> dict[str, str | bool]:
    return {"pool": pool.name, "variant": variant(pool)}


def _retry_after(pool: Pool, placement: Placement) -> dict[str, str | bool]:
    if pool.load_shedding is None or not placement.sheds:
        return {}
    return {"retry_after": str(pool.load_shedding.retry_after_seconds)}


def _balance(message: cluster_pb2.Cluster, pool: Pool, placement: Placement) -> None:
    """Without panic: an unfit replica gets nothing, however few are left."""
    common = message.common_lb_config
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
    """RANDOM ignores weights: where they differ, round robin keeps the shares that random would give. A ring is cut
    anew for every replica when one goes, and moves keys of the others; Maglev moves next to none but the lost one's."""
    if pool.balance.algorithm == "random":
        return "ROUND_ROBIN" if uneven(pool) else "RANDOM"
    return {"round_robin": "ROUND_ROBIN", "hash": "MAGLEV"}.get(pool.balance.algorithm, "LEAST_REQUEST")


def uneven(pool: Pool) -> bool:
    return len({item.capacity for item in pool.replicas}) > 1


def slow_start(message: cluster_pb2.Cluster.SlowStartConfig, pool: Pool) -> None:
    if pool.slow_start is None:
        return
    message.slow_start_window.CopyFrom(duration(pool.slow_start.window))
    message.aggression.default_value = pool.slow_start.aggression
    message.aggression.runtime_key = f"lbctl.slow_start.{pool.name}.aggression"
    message.min_weight_percent.value = pool.slow_start.min_weight


def _breakers(limits: CircuitBreaker, upstream: Upstream) -> dict[str, object]:
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
    """HTTP/1.1 carries one request on a connection, so a limit of requests is one of connections; with HTTP/2 it is
    one connection with so many streams."""
    requests, connections = limits.replica_max_requests, limits.replica_max_connections
    if pool.protocol == "http1":
        return min((item for item in (requests, connections) if item is not None), default=None)
    return connections if requests is None else 1


def _protocol(pool: Pool) -> http_protocol_options_pb2.HttpProtocolOptions:
    most, streams = pool.connections.max_requests, pool.circuit_breaker.replica_max_requests
    http2 = {
        "connection_keepalive": _PING,
        "max_concurrent_streams": None if streams is None else {"value": streams},
    }
    explicit = {"http_protocol_options": {}} if pool.protocol == "http1" else {"http2_protocol_options": http2}
    common = {
        "idle_timeout": duration(pool.connections.idle),
        "max_requests_per_connection": None if most is None else {"value": most},
    }
    return http_protocol_options_pb2.HttpProtocolOptions(
        common_http_protocol_options=common, explicit_http_config=explicit
    )


def _members(pool: Pool) -> dict[str, object]:
    if isinstance(pool.discovery, DnsDiscovery) and not pool.replicas:
        dns = pool.discovery
        return _kind([Address(dns.name, dns.port)], dns.refresh, dns.resolvers)
    return _kind([item.address for item in pool.replicas], _REFRESH)


def _kind(where: Sequence[Address], refresh: int, resolvers: Sequence[Address] = ()) -> dict[str, object]:
    """Fixed addresses, or names that are looked up again every `refresh` ms; each address of a name is a replica."""
    if all(item.path or is_ip(item.host) for item in where):
        return {"type": "STATIC"}
    config = cares_dns_resolver_pb2.CaresDnsResolverConfig(resolvers=[address(item) for item in resolvers])
    dns = dns_cluster_pb2.DnsCluster(
        dns_refresh_rate=duration(refresh),
        dns_lookup_family="V4_PREFERRED",
        all_addresses_in_single_endpoint=False,
        typed_dns_resolver_config=extension("envoy.network.dns_resolver.cares", config) if resolvers else None,
    )
    return {"cluster_type": extension("envoy.cluster.dns", dns)}

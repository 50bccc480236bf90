"""A replica for each request, by the picker: the filter that asks it, its cluster, and the policy that obeys it.

The filter `ext_proc` asks the picker on routes that lead to a pool with the algorithm `pick`, and lets the request pass
where the picker fails. The picker's answer is metadata, which no client can write; a host that is not in the cluster,
or no answer at all, leaves the choice to the policy that the cluster would have without the picker.
"""

from __future__ import annotations

from typing import Any

from envoy.config.cluster.v3 import cluster_pb2
from envoy.extensions.filters.http.ext_proc.v3 import ext_proc_pb2, processing_mode_pb2
from envoy.extensions.load_balancing_policies.common.v3 import common_pb2
from envoy.extensions.load_balancing_policies.least_request.v3 import least_request_pb2
from envoy.extensions.load_balancing_policies.maglev.v3 import maglev_pb2
from envoy.extensions.load_balancing_policies.override_host.v3 import override_host_pb2
from envoy.extensions.load_balancing_policies.random.v3 import random_pb2
from envoy.extensions.load_balancing_policies.round_robin.v3 import round_robin_pb2
from envoy.extensions.transport_sockets.tls.v3 import tls_pb2
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2

from lbctl.ir import busy
from lbctl.ir.address import Address
from lbctl.ir.listeners import Listener
from lbctl.ir.pools import Pool
from lbctl.ir.routes import Forward, Route
from lbctl.ir.snapshot import View
from lbctl.targets.envoy.bootstrap import CA, CERTIFICATE
from lbctl.targets.envoy.protos import address, duration, extension, pack

CLUSTER = "picker|lbctl"
"""The name of the picker's cluster; no pool has such a name."""
DESTINATION = "x-gateway-destination-endpoint"
"""The key of the metadata that names the chosen replicas, and the header by which gateways do."""
POOL, REGIONS, BUSY = "x-lbctl-pool", "x-lbctl-regions", "x-lbctl-busy"
"""The metadata of a call: for which pool a replica is wanted, in which regions, and whether busy ones are left."""
_WHO_ASKS = ("xds.node.id", "xds.node.locality.region", "xds.node.locality.zone")
"""The attributes of a request that say which Envoy asks, and where it runs."""
_NAMESPACE = "envoy.lb"
_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_MOST_STREAMS = 1 << 20
"""Each request has a stream until it ends; Envoy's default would allow 1,024."""
_CONNECT = 100
_CHECK_INTERVAL, _CHECK_TIMEOUT = 500, 250
"""Milliseconds. A picker that hangs is known to hang after two checks."""
_MODE = processing_mode_pb2.ProcessingMode
_MOVED = ("zone_aware_lb_config", "consistent_hashing_lb_config")
"""Parts of `common_lb_config` that Envoy wants in the policy itself."""
_LEGACY = ("lb_policy", "round_robin_lb_config", "least_request_lb_config")


# ── The filter ───────────────────────────────────────────────────────────────────────────────────────────────────────


def http_filters(view: View, listener: Listener) -> list[dict[str, object]]:
    """Return the filters that ask the picker: one for each timeout. They act only on routes that configure them."""
    names = {name for rule in listener.rules for name in _pools(view.routes[rule.route])}
    timeouts = {pick.timeout for name in names if (pick := view.pools[name].balance.pick) is not None}
    return [{**extension(_filter(item), _processor(item)), "disabled": True} for item in sorted(timeouts)]


def per_route(pool: Pool, route: Route) -> dict[str, Any]:
    """Return what a route or a share configures of the filter. Bodies that may never end are not read."""
    pick = pool.balance.pick
    if pick is None:
        return {}
    metadata = [{"key": POOL, "value": pool.name}]
    if route.regions:
        metadata.append({"key": REGIONS, "value": ",".join(route.regions).replace("%", "%%")})
    if busy.statuses(route, pool):
        metadata.append({"key": BUSY, "value": "1"})
    reads = pick.reads_bodies and not route.websocket and pool.protocol != "grpc"
    overrides = {"processing_mode": _mode(reads=reads), "grpc_initial_metadata": metadata}
    return {_filter(pick.timeout): pack(ext_proc_pb2.ExtProcPerRoute(overrides=overrides))}


def early_mutations(view: View, listener: Listener) -> list[dict[str, object]]:
    """Return the removal of the header in which a client could name a replica."""
    return [{"remove": DESTINATION}] if http_filters(view, listener) else []


def asks(view: View) -> bool:
    """Return whether the filter is in use, and so its cluster is needed."""
    return any(pool.balance.pick is not None for pool in view.pools.values())


def _pools(route: Route) -> tuple[str, ...]:
    return route.action.pools if isinstance(route.action, Forward) else ()


def _filter(timeout: int) -> str:
    return f"lbctl.pick.{timeout}"


def _processor(timeout: int) -> ext_proc_pb2.ExternalProcessor:
    """Return the filter's configuration. Of what the picker may answer, it accepts the metadata alone."""
    untyped = {"untyped": [_NAMESPACE]}
    return ext_proc_pb2.ExternalProcessor(
        grpc_service={"envoy_grpc": {"cluster_name": CLUSTER}},
        failure_mode_allow=True,
        message_timeout=duration(timeout),
        processing_mode=_MODE(request_header_mode="SKIP", response_header_mode="SKIP"),
        request_attributes=_WHO_ASKS,
        response_attributes=["upstream.address", "response.code_details"],
        metadata_options={"receiving_namespaces": untyped, "forwarding_namespaces": untyped},
        mutation_rules={"disallow_all": {"value": True}},
        disable_immediate_response=True,
        route_cache_action="RETAIN",
    )


def _mode(*, reads: bool) -> processing_mode_pb2.ProcessingMode:
    """Return what of a request the picker gets. The trailers keep the stream open until the request ends."""
    return _MODE(
        request_header_mode="SEND",
        request_body_mode="BUFFERED_PARTIAL" if reads else "NONE",
        response_header_mode="SEND",
        response_trailer_mode="SEND",
        response_body_mode="NONE",
    )


# ── The clusters ─────────────────────────────────────────────────────────────────────────────────────────────────────


def cluster(where: Address | None, *, tls: bool = False) -> cluster_pb2.Cluster:
    """Return the picker's cluster with its endpoint: an unfit picker is not asked, whatever else is left.

    Without an address the cluster is empty, and requests pass at once, as with a picker that is dead.
    With `tls` it has the certificates of the connection to the control plane, which are in the proxy's bootstrap.
    """
    options = http_protocol_options_pb2.HttpProtocolOptions(explicit_http_config={"http2_protocol_options": {}})
    most = {"value": _MOST_STREAMS}
    thresholds = {"max_connections": most, "max_pending_requests": most, "max_requests": most}
    check = {
        "timeout": duration(_CHECK_TIMEOUT),
        "interval": duration(_CHECK_INTERVAL),
        "no_traffic_interval": duration(_CHECK_INTERVAL),
        "unhealthy_threshold": {"value": 2},
        "healthy_threshold": {"value": 1},
        "grpc_health_check": {"service_name": "readiness"},
    }
    picker = [{"endpoint": {"address": address(where.from_here)}}] if where is not None else []
    return cluster_pb2.Cluster(
        name=CLUSTER,
        type="STATIC",
        connect_timeout=duration(_CONNECT),
        typed_extension_protocol_options={_HTTP_OPTIONS: pack(options)},
        circuit_breakers={"thresholds": [thresholds]},
        health_checks=[check],
        close_connections_on_host_health_failure=True,
        common_lb_config={"healthy_panic_threshold": {}},
        load_assignment={"cluster_name": CLUSTER, "endpoints": [{"lb_endpoints": picker}]},
        transport_socket=_tls() if tls else None,
    )


def _tls() -> dict[str, object]:
    common = {
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2", "tls_maximum_protocol_version": "TLSv1_3"},
        "alpn_protocols": ["h2"],
        "validation_context_sds_secret_config": {"name": CA},
        "tls_certificate_sds_secret_configs": [{"name": CERTIFICATE}],
    }
    return extension("envoy.transport_sockets.tls", tls_pb2.UpstreamTlsContext(common_tls_context=common))


def obey(message: cluster_pb2.Cluster, pool: Pool) -> None:
    """Let the picker's answer override the cluster's load balancing policy, if the pool has the algorithm `pick`."""
    if pool.balance.pick is None:
        return
    fallback = _policy(message)
    for name in _LEGACY:
        message.ClearField(name)
    for name in _MOVED:
        message.common_lb_config.ClearField(name)
    key = {"key": _NAMESPACE, "path": [{"key": DESTINATION}]}
    override = override_host_pb2.OverrideHost(
        override_host_sources=[{"metadata": key}], fallback_policy={"policies": [{"typed_extension_config": fallback}]}
    )
    config = extension("envoy.load_balancing_policies.override_host", override)
    message.load_balancing_policy.policies.add(typed_extension_config=config)


def _policy(message: cluster_pb2.Cluster) -> dict[str, object]:
    """Return the policy that the cluster has so far, as an extension."""
    name = cluster_pb2.Cluster.LbPolicy.Name(message.lb_policy).lower()
    return extension(f"envoy.load_balancing_policies.{name}", _POLICIES[name](message))


def _round_robin(message: cluster_pb2.Cluster) -> round_robin_pb2.RoundRobin:
    config = round_robin_pb2.RoundRobin(locality_lb_config=_locality(message))
    _copy_slow_start(message.round_robin_lb_config.slow_start_config, config.slow_start_config)
    return config


def _least_request(message: cluster_pb2.Cluster) -> least_request_pb2.LeastRequest:
    config = least_request_pb2.LeastRequest(locality_lb_config=_locality(message))
    _copy_slow_start(message.least_request_lb_config.slow_start_config, config.slow_start_config)
    return config


def _random(message: cluster_pb2.Cluster) -> random_pb2.Random:
    return random_pb2.Random(locality_lb_config=_locality(message))


def _maglev(message: cluster_pb2.Cluster) -> maglev_pb2.Maglev:
    factor = message.common_lb_config.consistent_hashing_lb_config.hash_balance_factor.value
    bound = {"hash_balance_factor": {"value": factor}} if factor else None
    return maglev_pb2.Maglev(consistent_hashing_lb_config=bound)


_POLICIES = {
    "round_robin": _round_robin,
    "least_request": _least_request,
    "random": _random,
    "maglev": _maglev,
}


def _locality(message: cluster_pb2.Cluster) -> dict[str, object] | None:
    if not message.common_lb_config.zone_aware_lb_config.fail_traffic_on_panic:
        return None
    return {"zone_aware_lb_config": {"fail_traffic_on_panic": True}}


def _copy_slow_start(given: cluster_pb2.Cluster.SlowStartConfig, taken: common_pb2.SlowStartConfig) -> None:
    if given.HasField("slow_start_window"):
        taken.slow_start_window.CopyFrom(given.slow_start_window)
        taken.aggression.CopyFrom(given.aggression)
        taken.min_weight_percent.CopyFrom(given.min_weight_percent)

"""A bootstrap that contains everything: routes inside the listeners, and replicas inside the clusters.

Only listeners with API keys or other credentials, and clusters whose health checks contain a key, are in separate files
that the bootstrap refers to. Envoy resolves such a file's path relative to its working directory, so the path is
absolute if the fleet sets the path of the proxy's configuration. Route tables are returned separately, because they
repeat for each host and need not be written as often.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from envoy.config.bootstrap.v3 import bootstrap_pb2
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.core.v3 import config_source_pb2
from envoy.config.route.v3 import route_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from envoy.extensions.resource_monitors.downstream_connections.v3 import downstream_connections_pb2
from envoy.service.discovery.v3 import discovery_pb2

from lbctl.ir import written_credentials
from lbctl.ir.pools import DnsDiscovery
from lbctl.ir.snapshot import View
from lbctl.targets import picker
from lbctl.targets.envoy import auth, clusters, endpoints, external, hosted, listeners, picking, resources
from lbctl.targets.envoy.bootstrap_parts import add_limits, add_metrics
from lbctl.targets.envoy.cluster_names import ClusterPlan, PlannedCluster, plan
from lbctl.targets.envoy.protos import admin_address, extension, pack
from lbctl.targets.envoy.resources import Delivery
from lbctl.targets.envoy.tls import files, header_file, header_name


@dataclass(frozen=True, slots=True)
class Static:
    """A static configuration.

    `secret_listeners` are the listeners with credentials, and `secret_clusters` are the clusters with a key. A
    listener's `route_config` contains only the name of one of `tables`.
    """

    bootstrap: bootstrap_pb2.Bootstrap
    secret_listeners: discovery_pb2.DiscoveryResponse
    secret_clusters: discovery_pb2.DiscoveryResponse
    tables: tuple[route_pb2.RouteConfiguration, ...]
    header_secrets: Mapping[str, discovery_pb2.DiscoveryResponse]
    """Files that contain the secrets sent in headers, by name."""


def static(view: View, listeners_file: str, clusters_file: str, form: str) -> Static:
    """Return the static configuration of a view.

    `listeners_file` names the file of listeners with credentials, `clusters_file` names the file of clusters with a
    key, and `form` is the format of all files. All files are next to the bootstrap.
    """
    directory = posixpath.dirname(view.proxy.config or "") or "."
    message, secret_listeners = frame(view), discovery_pb2.DiscoveryResponse()
    needed = plan(view)
    delivery = Delivery(_routes, lambda built, item: _endpoints(built, item, view), files(directory, form))
    for item in view.listeners:
        built = resources.listener(view, item, delivery)
        if auth.holds_keys(view, item) or written_credentials.in_rules(view, item.rules):
            secret_listeners.resources.append(pack(built))
        else:
            message.static_resources.listeners.append(built)
    secret_clusters = discovery_pb2.DiscoveryResponse()
    for upstream in needed.upstreams:
        built_cluster = resources.cluster(upstream, delivery)
        if upstream.holds_credentials:
            secret_clusters.resources.append(pack(built_cluster))
        else:
            message.static_resources.clusters.append(built_cluster)
    message.static_resources.clusters.extend(_other_clusters(view, needed, delivery))
    add_metrics(message, view.proxy.metrics, view.proxy.admin)
    if secret_listeners.resources:
        _name_file(message.dynamic_resources.lds_config, posixpath.join(directory, listeners_file))
    tables = tuple(resources.table(view, item, needed) for item in view.listeners)
    if secret_clusters.resources:
        _name_file(message.dynamic_resources.cds_config, posixpath.join(directory, clusters_file))
        for table in tables:  # Envoy reads the file of clusters after the listeners of the bootstrap
            table.validate_clusters.value = False
    return Static(message, secret_listeners, secret_clusters, tables, _header_secrets(view, form))


def _header_secrets(view: View, form: str) -> dict[str, discovery_pb2.DiscoveryResponse]:
    key = [(*picking.KEY, view.picker_key)] if view.picker is not None and view.picker_key else []
    return {
        header_file(pool, header, form): discovery_pb2.DiscoveryResponse(
            resources=[pack(hosted.secret(header_name(pool, header), value))]
        )
        for pool, header, value in (*hosted.secrets(view), *key)
    }


def _other_clusters(view: View, needed: ClusterPlan, delivery: Delivery) -> Iterator[cluster_pb2.Cluster]:
    """Yield the clusters that do not contain a pool's replicas."""
    yield from (clusters.fallback(item, delivery.keys) for item in needed.fallbacks)
    if view.picker is not None:
        where = None if view.picker_tls else view.picker
        key = delivery.keys.header(*picking.KEY) if view.picker_key else None
        rejects = picker.rejects(view)
        yield from (make(where, key=key, rejects=rejects) for make in picking.CLUSTERS.values())
    for name, route in external.services(view.routes.values()).items():
        if route.auth and route.auth.external:
            yield external.cluster(name, route.auth.external)
    for item in view.listeners:
        if item.tracing:
            yield clusters.collector(listeners.tracing_cluster(item), item.tracing.otlp)


def _name_file(source: config_source_pb2.ConfigSource, path: str) -> None:
    source.resource_api_version = config_source_pb2.V3
    source.path_config_source.path = path


def frame(view: View) -> bootstrap_pb2.Bootstrap:
    """Return the bootstrap without listeners and clusters: its node, admin port and connection limits."""
    proxy = view.proxy
    locality = {key: value for key, value in (("region", proxy.region), ("zone", proxy.zone)) if value}
    message = bootstrap_pb2.Bootstrap(
        node={"id": proxy.name, "cluster": "lbctl", "locality": locality or None},
        admin={"address": admin_address(proxy.admin)} if proxy.admin else None,
    )
    limits = {item.name: item.max_connections for item in view.listeners if item.max_connections is not None}
    add_limits(message, limits)
    if limits and len(limits) == len(view.listeners):
        _limit_all(message, limits)
    return message


def _limit_all(message: bootstrap_pb2.Bootstrap, limits: Mapping[str, int]) -> None:
    total = downstream_connections_pb2.DownstreamConnectionsConfig(
        max_active_downstream_connections=sum(limits.values())
    )
    monitor = extension("envoy.resource_monitors.global_downstream_max_connections", total)
    message.overload_manager.resource_monitors.add(**monitor)


def _routes(manager: hcm_pb2.HttpConnectionManager, name: str) -> None:
    manager.route_config.name = name


def _endpoints(cluster: cluster_pb2.Cluster, item: PlannedCluster, view: View) -> None:
    pool = item.pool
    layout = endpoints.EndpointLayout(
        item.name, pool, item.drained, view.proxy, item.placement, endpoints.as_written, item.out
    )
    assignment = layout.weighed(item.weights)
    if isinstance(pool.discovery, DnsDiscovery) and not pool.replicas and not item.placement.regions:
        endpoints.add_dns_name(assignment, pool.discovery, pool)
    cluster.load_assignment.CopyFrom(assignment)

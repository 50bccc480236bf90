"""One file that holds everything: routes inside the listeners, replicas inside the clusters."""

from __future__ import annotations

from collections.abc import Mapping

from envoy.config.bootstrap.v3 import bootstrap_pb2
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.route.v3 import route_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from envoy.extensions.resource_monitors.downstream_connections.v3 import downstream_connections_pb2

from lbctl.ir.snapshot import View
from lbctl.targets.envoy.resources import Delivery, Resources, build
from lbctl.targets.envoy.wire import address, extension

_LIMIT = "envoy.resource_limits.listener.{}.connection_limit"


def inline() -> Delivery:
    return Delivery(routes=_routes, endpoints=_endpoints)


def bootstrap(view: View) -> bootstrap_pb2.Bootstrap:
    message = frame(view)
    resources: Resources = build(view, inline())
    message.static_resources.listeners.extend(resources.listeners)
    message.static_resources.clusters.extend(resources.clusters)
    return message


def frame(view: View) -> bootstrap_pb2.Bootstrap:
    """What is Envoy's own: who it is, its admin port where one was asked for, how many connections it takes."""
    proxy = view.proxy
    locality = {key: value for key, value in (("region", proxy.region), ("zone", proxy.zone)) if value}
    message = bootstrap_pb2.Bootstrap(
        node={"id": proxy.name, "cluster": "lbctl", "locality": locality or None},
        admin={"address": address(proxy.admin)} if proxy.admin else None,
    )
    limits = {item.name: item.max_connections for item in view.listeners if item.max_connections is not None}
    if limits:
        layer = message.layered_runtime.layers.add(name="limits").static_layer
        for name, limit in limits.items():
            layer[_LIMIT.format(name)] = limit
    if limits and len(limits) == len(view.listeners):
        _limit_all(message, limits)
    return message


def _limit_all(message: bootstrap_pb2.Bootstrap, limits: Mapping[str, int]) -> None:
    total = downstream_connections_pb2.DownstreamConnectionsConfig(
        max_active_downstream_connections=sum(limits.values())
    )
    monitor = extension("envoy.resource_monitors.global_downstream_max_connections", total)
    message.overload_manager.resource_monitors.add(**monitor)


def _routes(manager: hcm_pb2.HttpConnectionManager, table: route_pb2.RouteConfiguration) -> None:
    manager.route_config.CopyFrom(table)


def _endpoints(cluster: cluster_pb2.Cluster, assignment: endpoint_pb2.ClusterLoadAssignment) -> None:
    cluster.load_assignment.CopyFrom(assignment)

"""Everything that one Envoy needs of a view, as messages. One builder for the file and for xDS.

Where an Envoy gets a listener's routes and a cluster's replicas from is the `Delivery`: in the same file, or by name
from a control plane. The messages themselves are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2

from lbctl.ir.listeners import Listener
from lbctl.ir.snapshot import View
from lbctl.targets.envoy import clusters, endpoints, listeners, routes
from lbctl.targets.envoy.plan import plan


@dataclass(frozen=True, slots=True)
class Delivery:
    """Writes into a connection manager where its routes come from, and into a cluster where its endpoints do."""

    routes: Callable[[hcm_pb2.HttpConnectionManager, route_pb2.RouteConfiguration], None]
    endpoints: Callable[[cluster_pb2.Cluster, endpoint_pb2.ClusterLoadAssignment], None]


@dataclass(frozen=True, slots=True)
class Resources:
    """Each tuple in the order of names. What a `Delivery` has put inside another message stands here as well."""

    listeners: tuple[listener_pb2.Listener, ...]
    routes: tuple[route_pb2.RouteConfiguration, ...]
    clusters: tuple[cluster_pb2.Cluster, ...]
    endpoints: tuple[endpoint_pb2.ClusterLoadAssignment, ...]
    secrets: tuple[secret_pb2.Secret, ...] = ()


def build(view: View, delivery: Delivery) -> Resources:
    wanted = plan(view)
    tables = [routes.route_configuration(routes.Table(view, item, wanted)) for item in view.listeners]
    built = [clusters.cluster(item) for item in wanted.upstreams]
    members = [
        endpoints.load_assignment(item.name, item.pool, item.weights, item.drained, view.proxy, item.placement)
        for item in wanted.upstreams
    ]
    for cluster, assignment in zip(built, members, strict=True):
        delivery.endpoints(cluster, assignment)
    built += [clusters.fallback(item) for item in wanted.fallbacks]
    traced = [(item, item.tracing) for item in view.listeners if item.tracing]
    built += [clusters.collector(listeners.tracing_cluster(item), tracing.otlp) for item, tracing in traced]
    return Resources(
        listeners=tuple(
            _listener(view, item, table, delivery) for item, table in zip(view.listeners, tables, strict=True)
        ),
        routes=tuple(tables),
        clusters=tuple(built),
        endpoints=tuple(members),
    )


def _listener(
    view: View, item: Listener, table: route_pb2.RouteConfiguration, delivery: Delivery
) -> listener_pb2.Listener:
    return listeners.listener(view, item, lambda manager: delivery.routes(manager, table))

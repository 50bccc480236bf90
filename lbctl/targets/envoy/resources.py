"""All resources that an Envoy needs for a view, as messages. Files and xDS use the same builder.

The `Delivery` determines where a listener's routes, a cluster's replicas and TLS secrets come from: the same file and
files next to it, or a control plane that sends them by name. The messages themselves do not differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2

from lbctl.ir.listeners import Listener
from lbctl.ir.snapshot import View
from lbctl.targets.envoy import clusters, listeners, picking, routes
from lbctl.targets.envoy.cluster_names import ClusterPlan, PlannedCluster
from lbctl.targets.envoy.tls import SecretSource


@dataclass(frozen=True, slots=True)
class Delivery:
    """The source of an Envoy's routes, endpoints and TLS secrets.

    `routes` writes the source of a named route table into a connection manager. `endpoints` writes the source of the
    replicas into a cluster.
    """

    routes: Callable[[hcm_pb2.HttpConnectionManager, str], None]
    endpoints: Callable[[cluster_pb2.Cluster, PlannedCluster], None]
    keys: SecretSource
    """Source of the routes' credentials."""


def listener(view: View, item: Listener, delivery: Delivery) -> listener_pb2.Listener:
    """Return the listener. The route table is named after the listener."""
    return listeners.listener(view, item, lambda manager: delivery.routes(manager, item.name), delivery.keys)


def table(view: View, item: Listener, plan: ClusterPlan) -> route_pb2.RouteConfiguration:
    """Return the route table of the listener."""
    return routes.route_configuration(routes.RouteInputs(view, item, plan))


def cluster(upstream: PlannedCluster, delivery: Delivery) -> cluster_pb2.Cluster:
    """Return the cluster with its endpoints or their source."""
    message = clusters.cluster(upstream, delivery.keys)
    delivery.endpoints(message, upstream)
    picking.obey(message, upstream.pool)
    return message

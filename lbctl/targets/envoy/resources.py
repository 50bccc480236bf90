"""Everything that one Envoy needs of a view, as messages, one by one. One builder for the file and for xDS.

Where an Envoy gets a listener's routes, a cluster's replicas and the keys of TLS from is the `Delivery`: in the same
file and beside it, or by name from a control plane. The messages themselves are the same.
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
from lbctl.targets.envoy import clusters, listeners, routes
from lbctl.targets.envoy.plan import Plan, Upstream
from lbctl.targets.envoy.tls import Keys


@dataclass(frozen=True, slots=True)
class Delivery:
    """Writes into a connection manager where the table of routes of that name comes from, and into a cluster where its
    replicas do; `keys`: where those of TLS come from."""

    routes: Callable[[hcm_pb2.HttpConnectionManager, str], None]
    endpoints: Callable[[cluster_pb2.Cluster, Upstream], None]
    keys: Keys


def listener(view: View, item: Listener, delivery: Delivery) -> listener_pb2.Listener:
    """Its table of routes has its name."""
    return listeners.listener(view, item, lambda manager: delivery.routes(manager, item.name), delivery.keys)


def table(view: View, item: Listener, wanted: Plan) -> route_pb2.RouteConfiguration:
    return routes.route_configuration(routes.Table(view, item, wanted))


def cluster(upstream: Upstream, delivery: Delivery) -> cluster_pb2.Cluster:
    message = clusters.cluster(upstream, delivery.keys)
    delivery.endpoints(message, upstream)
    return message

"""Envoy's own figures for Prometheus: a listener that leads to one page of the admin interface, and to no other.

The page is a GET without a query, so that nothing of the interface can be changed or asked in another form.
"""

from __future__ import annotations

from envoy.config.bootstrap.v3 import bootstrap_pb2
from envoy.extensions.filters.http.router.v3 import router_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2

from lbctl.ir.address import Address
from lbctl.targets.envoy import local_reply
from lbctl.targets.envoy.protos import address, duration, extension

_NAME = "metrics|lbctl"
"""The name of the listener and of its cluster; none of a fleet's has such a name."""
_PAGE = "/stats/prometheus"


def add(message: bootstrap_pb2.Bootstrap, bind: Address | None, admin: Address | None) -> None:
    """Add the listener and the cluster of the admin interface; nothing without both addresses."""
    if bind is None or admin is None:
        return
    endpoint = {"endpoint": {"address": address(admin)}}
    message.static_resources.clusters.add(
        name=_NAME,
        type="STATIC",
        connect_timeout=duration(1_000),
        load_assignment={"cluster_name": _NAME, "endpoints": [{"lb_endpoints": [endpoint]}]},
    )
    chain = {"filters": [extension("envoy.filters.network.http_connection_manager", _manager())]}
    message.static_resources.listeners.add(name=_NAME, address=address(bind), filter_chains=[chain])


def _manager() -> hcm_pb2.HttpConnectionManager:
    get = {"name": ":method", "string_match": {"exact": "GET"}}
    regex = {"pattern": {"regex": ".*"}, "substitution": _PAGE}
    page = {
        "match": {"path": "/metrics", "headers": [get]},
        "route": {"cluster": _NAME, "regex_rewrite": regex, "timeout": duration(30_000)},
    }
    other = {
        "match": {"prefix": "/"},
        "direct_response": {"status": 404, "body": {"inline_string": local_reply.error(404)}},
    }
    return hcm_pb2.HttpConnectionManager(
        stat_prefix="metrics",
        request_headers_timeout=duration(10_000),
        stream_idle_timeout=duration(30_000),
        route_config={"name": _NAME, "virtual_hosts": [{"name": "*", "domains": ["*"], "routes": [page, other]}]},
        http_filters=[extension("envoy.filters.http.router", router_pb2.Router(suppress_envoy_headers=True))],
    )

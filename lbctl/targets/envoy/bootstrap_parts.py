"""Parts of every bootstrap that lbctl writes: Envoy's metrics page for Prometheus, and runtime limits.

The page is a listener that gives access to only one page of the admin interface. The listener only accepts a GET
without a query, so that clients cannot change anything or request another format. The limits are a static layer rather
than a file next to the bootstrap, so only a restart can change them.
"""

from __future__ import annotations

from collections.abc import Mapping

from envoy.config.bootstrap.v3 import bootstrap_pb2
from envoy.extensions.filters.http.router.v3 import router_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2

from lbctl.ir.address import Address
from lbctl.targets.envoy import local_reply
from lbctl.targets.envoy.protos import address, duration, extension

_METRICS = "metrics|lbctl"
"""Name of the listener and its cluster. No object in a fleet can have this name."""
_PAGE = "/stats/prometheus"
_PROGRAM = "re2.max_program_size.error_level"
_PROGRAM_SIZE = 1_000_000
"""Maximum program size of regular expressions. By default, Envoy rejects regular expressions of more than 100
instructions, and `[a-z]{1,63}` has 130. This limit is higher than what RE2 allows in its 8 MiB (about 350,000), so
RE2's own limit applies. Matching takes time linear in the input."""
_CONNECTIONS = "envoy.resource_limits.listener.{}.connection_limit"


def add_metrics(message: bootstrap_pb2.Bootstrap, bind: Address | None, admin: Address | None) -> None:
    """Add the metrics listener and its cluster for the admin interface, if both addresses are set."""
    if bind is None or admin is None:
        return
    endpoint = {"endpoint": {"address": address(admin)}}
    message.static_resources.clusters.add(
        name=_METRICS,
        type="STATIC",
        connect_timeout=duration(1_000),
        load_assignment={"cluster_name": _METRICS, "endpoints": [{"lb_endpoints": [endpoint]}]},
    )
    chain = {"filters": [extension("envoy.filters.network.http_connection_manager", _manager())]}
    message.static_resources.listeners.add(name=_METRICS, address=address(bind), filter_chains=[chain])


def _manager() -> hcm_pb2.HttpConnectionManager:
    get = {"name": ":method", "string_match": {"exact": "GET"}}
    regex = {"pattern": {"regex": ".*"}, "substitution": _PAGE}
    page = {
        "match": {"path": "/metrics", "headers": [get]},
        "route": {"cluster": _METRICS, "regex_rewrite": regex, "timeout": duration(30_000)},
    }
    other = {
        "match": {"prefix": "/"},
        "direct_response": {"status": 404, "body": {"inline_string": local_reply.error(404)}},
    }
    return hcm_pb2.HttpConnectionManager(
        stat_prefix="metrics",
        request_headers_timeout=duration(10_000),
        stream_idle_timeout=duration(30_000),
        route_config={"name": _METRICS, "virtual_hosts": [{"name": "*", "domains": ["*"], "routes": [page, other]}]},
        http_filters=[extension("envoy.filters.http.router", router_pb2.Router(suppress_envoy_headers=True))],
    )


def add_limits(message: bootstrap_pb2.Bootstrap, connections: Mapping[str, int]) -> None:
    """Add the runtime layer to a bootstrap.

    `connections` maps a listener's name to its connection limit.
    """
    layer = message.layered_runtime.layers.add(name="limits").static_layer
    layer[_PROGRAM] = _PROGRAM_SIZE
    for name, limit in connections.items():
        layer[_CONNECTIONS.format(name)] = limit

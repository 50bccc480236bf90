"""HTTP filters that no key means, as own filters."""

from __future__ import annotations

from typing import Any

import yaml

from lbctl.importer import own
from lbctl.importer.envoy.context import EnvoyImport
from lbctl.importer.envoy.view import EMPTY, ConfigView
from lbctl.targets.envoy.own_filters import NoFilterError, parse

_KINDS = frozenset(
    {"admission_control", "bandwidth_limit", "compressor", "csrf", "decompressor", "ext_proc", "fault",
     "grpc_http1_bridge", "grpc_stats", "grpc_web", "header_mutation", "header_to_metadata", "jwt_authn", "lua",
     "set_metadata", "wasm"}
)  # fmt: skip
_MAY_REFUSE = frozenset({"csrf", "jwt_authn", "lua", "wasm"})
"""Those that may let in whom a route's own configuration of them would refuse, which an own filter has not."""
_ASKS = frozenset({"cluster", "cluster_name", "cluster_header"})
"""Fields that name a cluster, which a fleet has under a name of its own."""


def keep(context: EnvoyImport, kind: str, item: ConfigView) -> bool:
    """Keep a filter as a file of its own; returns whether it has become one.

    It would hold for every listener, so that it needs a configuration with one; it may ask no cluster by its name,
    except for a service by gRPC, which is asked by its address; and no route may say something else of what may refuse.
    """
    if kind not in _KINDS or len(context.draft.fleet["listeners"]) != 1 or context.managers != 1:
        return False
    if kind in _MAY_REFUSE and item.get("name").text in context.filters_of_routes:
        return False
    document = _addressed(context, item.plain)
    text = yaml.safe_dump(document, sort_keys=False, width=110)
    if document is None or _names_cluster(document) or "httpCall" in text:
        return False
    try:
        parse(text)
    except NoFilterError:
        return False
    name = item.get("name").text.rpartition(".")[2]
    return own.keep_document(context.draft, "envoy", "http_filters", name, text, *item.all)


def _addressed(context: EnvoyImport, value: Any) -> Any:
    """Return the configuration with services by gRPC named by their addresses; None for one without an address."""
    if isinstance(value, list):
        return [_addressed(context, item) for item in value]
    if not isinstance(value, dict):
        return value
    service = value.get("envoy_grpc") or value.get("envoyGrpc")
    if service is None:
        return {key: _addressed(context, item) for key, item in value.items()}
    name = str(service.get("cluster_name") or service.get("clusterName"))
    cluster = context.clusters.get(name, EMPTY)
    groups = cluster.get("load_assignment", "endpoints")
    endpoints = [
        item.get("endpoint", "address", "socket_address") for group in groups for item in group.get("lb_endpoints")
    ]
    if len(endpoints) != 1 or cluster.get("transport_socket"):
        return value
    context.services.add(name)
    target = f"{endpoints[0].get('address').text}:{endpoints[0].get('port_value').text}"
    rest = {key: item for key, item in value.items() if key not in {"envoy_grpc", "envoyGrpc"}}
    return rest | {"google_grpc": {"target_uri": target, "stat_prefix": name}}


def _names_cluster(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_names_cluster, value))
    if not isinstance(value, dict):
        return False
    return any(key in _ASKS or key == "clusterName" or _names_cluster(item) for key, item in value.items())

"""Converts HTTP filters without a matching key to the fleet's own filters."""

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
"""Filters that may accept clients that a route's own configuration would reject. Own filters have no such
configuration."""
_ASKS = frozenset({"cluster", "cluster_name", "cluster_header"})
"""Fields that name a cluster. Clusters are named differently in a fleet."""


def keep(context: EnvoyImport, kind: str, item: ConfigView) -> bool:
    """Keep a filter as a separate file. Returns whether this was possible.

    The filter would apply to every listener, so it must have a configuration. The configuration must not name a
    cluster, except for a gRPC service, which is addressed directly. If the filter may reject requests, no route may
    have separate settings for it.
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
    """Return the configuration with gRPC services identified by address, or None if an address is missing."""
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

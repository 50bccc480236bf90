"""A configuration of Envoy rewritten for loopback."""

from __future__ import annotations

import re
from typing import Any

import yaml

from lbctl.apply.reserved_ports import LOOPBACK
from lbctl.importer.compare.places import PATIENCE, StandIns

_ENVOY_FILTERS = frozenset(
    {
        "router",
        "health_check",
        "local_ratelimit",
        "buffer",
        "json_to_metadata",
        "cors",
        "ext_authz",
        "basic_auth",
        "rbac",
    }
)
_CLUSTER_KEYS = frozenset(
    {"name", "connect_timeout", "lb_policy", "circuit_breakers", "typed_extension_protocol_options"}
)


def _snake(value: Any) -> Any:
    """Return the tree with the names of fields as protobuf's text form has them."""
    if isinstance(value, list):
        return [_snake(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {_snake_name(key): _snake(item) for key, item in value.items()}


def _snake_name(name: str) -> str:
    return name if "." in name else re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: f"_{match[1].lower()}", name)


def rewrite(tree: dict[str, Any], places: StandIns) -> str:
    """Return a static configuration of Envoy for loopback."""
    tree = _snake(tree)
    static = tree.get("static_resources", {})
    configs = {item.get("name"): item for item in static.get("route_configs", [])}
    endpoints = {item.get("cluster_name"): item for item in static.get("endpoints", [])}
    listeners = [listener for item in static.get("listeners", []) if (listener := _listener(item, configs, places))]
    clusters = [_cluster(item, endpoints, places) for item in static.get("clusters", [])]
    return yaml.safe_dump({"static_resources": {"listeners": listeners, "clusters": clusters}}, sort_keys=False)


def _listener(item: dict[str, Any], configs: dict[Any, Any], places: StandIns) -> dict[str, Any] | None:
    address = item["address"].get("socket_address", {})
    port = places.binds.get(f"{address.get('address')}:{address.get('port_value')}")
    chains = [kept for chain in item.get("filter_chains", []) if (kept := _chain(chain, configs, places))]
    if port is None or not chains:
        return None
    place = {"socket_address": {"address": LOOPBACK, "port_value": port}}
    return {"name": item.get("name", "listener"), "address": place, "filter_chains": chains[:1]}


def _chain(chain: dict[str, Any], configs: dict[Any, Any], places: StandIns) -> dict[str, Any] | None:
    managers = [
        item for item in chain.get("filters", []) if "HttpConnectionManager" in str(item["typed_config"]["@type"])
    ]
    if not managers:
        return None
    manager = {
        key: value for key, value in managers[0]["typed_config"].items() if key not in {"access_log", "tracing", "rds"}
    }
    rds = managers[0]["typed_config"].get("rds", {}).get("route_config_name")
    if rds in configs:
        manager["route_config"] = {key: value for key, value in configs[rds].items() if key != "@type"}
    kept = [item for item in manager.get("http_filters", []) if _filter_kind(item) in _ENVOY_FILTERS]
    manager["http_filters"] = list(map(_patient, kept))
    result: dict[str, Any] = {"filters": [{"name": managers[0]["name"], "typed_config": manager}]}
    if "transport_socket" in chain:
        result["transport_socket"] = _downstream_tls(places)
    return result


def _patient(item: dict[str, Any]) -> dict[str, Any]:
    """Return a filter that waits for the stand-in of the service that it asks."""
    typed = item.get("typed_config", {})
    service = typed.get("http_service", {})
    if "server_uri" not in service:
        return item
    uri = service["server_uri"] | {"timeout": PATIENCE}
    return item | {"typed_config": typed | {"http_service": service | {"server_uri": uri}}}


def _filter_kind(item: dict[str, Any]) -> str:
    parts = str(item.get("typed_config", {}).get("@type", "")).rpartition("/")[2].split(".")
    return parts[4] if len(parts) > 5 else str(item.get("name")).rpartition(".")[2]


def _downstream_tls(places: StandIns) -> dict[str, Any]:
    pair = {"certificate_chain": {"filename": places.pem}, "private_key": {"filename": places.pem}}
    kind = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext"
    context = {"@type": kind, "common_tls_context": {"tls_certificates": [pair]}}
    return {"name": "envoy.transport_sockets.tls", "typed_config": context}


def _cluster(item: dict[str, Any], endpoints: dict[Any, Any], places: StandIns) -> dict[str, Any]:
    cluster = {key: value for key, value in item.items() if key in _CLUSTER_KEYS}
    if "cluster_type" in item:
        return cluster | {"cluster_type": item["cluster_type"]}
    assignment = item.get("load_assignment") or endpoints.get(item["name"]) or {"endpoints": []}
    groups = [{**group, "lb_endpoints": _endpoints(group, places)} for group in assignment.get("endpoints", [])]
    policy = {"lb_policy": "ROUND_ROBIN"} if cluster.get("lb_policy") == "CLUSTER_PROVIDED" else {}
    return cluster | policy | {"type": "STATIC", "load_assignment": {"cluster_name": item["name"], "endpoints": groups}}


def _endpoints(group: dict[str, Any], places: StandIns) -> list[dict[str, Any]]:
    endpoints = []
    for item in group.get("lb_endpoints", []):
        address = item["endpoint"]["address"].get("socket_address", {})
        host, _, port = places.replica(f"{address.get('address')}:{address.get('port_value')}").rpartition(":")
        place = {"socket_address": {"address": host, "port_value": int(port)}}
        endpoint = {"address": place, "hostname": address.get("address")}
        endpoints.append({"endpoint": endpoint, "load_balancing_weight": item.get("load_balancing_weight", 1)})
    return endpoints

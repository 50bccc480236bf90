"""HTTP filters that reject clients, limit them, or correspond to other settings in a fleet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lbctl.importer.envoy import own
from lbctl.importer.envoy.context import EnvoyImport
from lbctl.importer.envoy.listeners import Manager
from lbctl.importer.envoy.protection import Protection, protection
from lbctl.importer.envoy.view import ConfigView

_PROTECTING = {
    "ext_authz": "authentication by an external service", "jwt_authn": "JWT authentication (write `auth.jwt`)",
    "rbac": "role-based access control", "basic_auth": "basic authentication", "oauth2": "OAuth authentication",
    "api_key_auth": "API key authentication (write `auth.api_keys`)", "csrf": "CSRF protection",
    "credential_injector": "injection of credentials", "geoip": "the geoip filter", "lua": "Lua code",
    "wasm": "WebAssembly code", "golang": "Go code",
}  # fmt: skip
"""Filters that may reject a request, with descriptions."""
_HARMLESS = frozenset(
    {"adaptive_concurrency", "admission_control", "alternate_protocols_cache", "aws_request_signing", "bandwidth_limit",
     "buffer", "cache", "cache_v2", "cdn_loop", "compressor", "connect_grpc_bridge", "cors", "custom_response",
     "decompressor", "dynamic_forward_proxy", "ext_proc", "fault", "file_system_buffer", "gcp_authn",
     "grpc_field_extraction", "grpc_http1_bridge", "grpc_http1_reverse_bridge", "grpc_json_reverse_transcoder",
     "grpc_json_transcoder", "grpc_stats", "grpc_web", "gzip", "header_mutation", "header_to_metadata", "health_check",
     "ip_tagging", "json_to_metadata", "kill_request", "local_ratelimit", "on_demand", "original_src",
     "proto_message_extraction", "proto_message_logging", "rate_limit_quota", "ratelimit", "router", "set_filter_state",
     "set_metadata", "stateful_session", "tap", "thrift_to_metadata", "upstream_codec"}
)  # fmt: skip
"""Envoy filters that do not control access. Any other filter might, because its program or configuration is unknown."""
_UNKNOWN = "an unknown filter"
_WITHOUT_TYPE = frozenset({"", "google.protobuf.Empty", "google.protobuf.Struct"})
"""Types of configuration that are identified by the name of their filter."""
_OTHERS = {
    "ext_proc": "external processors are not converted: `balance.algorithm: pick` selects a replica for each request",
    "cors": "CORS is not converted: set its headers in the route's `headers.response`",
    "compressor": "lbctl does not compress responses", "grpc_web": "lbctl does not translate gRPC-Web",
    "ratelimit": "rate limits from an external service are not converted: set `rate_limit`",
}  # fmt: skip


@dataclass(slots=True)
class Filters:
    """How a connection manager's filters affect its routes."""

    protections: list[tuple[ConfigView, Protection | None, str]] = field(default_factory=list)
    """Filters that may reject requests, with the function that protects a route, and the reason to close a route
    without one."""
    disabled: list[ConfigView] = field(default_factory=list)
    """Filters that are disabled unless a route enables them."""
    limits: list[dict[str, Any]] = field(default_factory=list)
    """Limits that apply to all routes."""
    limit_views: list[ConfigView] = field(default_factory=list)
    """The sources of these limits."""
    answers: list[tuple[dict[str, Any], ConfigView]] = field(default_factory=list)
    """Matches for requests that a filter answers with 200."""


def filters(context: EnvoyImport, manager: Manager) -> Filters:
    """Read the HTTP filters of a connection manager."""
    result = Filters([(view, None, f"{why} is not converted") for view, why in manager.closing])
    for item in manager.view.get("http_filters"):
        if item.get("disabled").text == "true":
            context.omit(item, "the filter is disabled; a route that enables it refuses all requests", manager.path)
            result.disabled.append(item)
            continue
        _filter(context, manager, item, result)
    return result


def _filter(context: EnvoyImport, manager: Manager, item: ConfigView, result: Filters) -> None:
    typed, kind = item.get("typed_config"), _kind(item)
    if kind == "router":
        context.imply("lbctl itself sends requests to replicas", item)
    elif kind == "health_check" and typed.get("pass_through_mode").text == "false":
        result.answers += [(match, item) for match in _paths(typed)]
    elif kind == "local_ratelimit" and (limit := _limit(typed)) is not None:
        result.limits.append(limit)
        result.limit_views.append(item)
    elif kind == "buffer" and (number := typed.get("max_request_bytes").number):
        context.put((*manager.path, "max_body"), f"{number}B", item)
    elif kind in _PROTECTING or kind not in _HARMLESS:
        why, lay = f"{_PROTECTING.get(kind, _UNKNOWN)} is not converted", protection(context, manager, kind, item)
        if lay is not None or not own.keep(context, kind, item):
            result.protections.append((item, lay, why))
    elif own.keep(context, kind, item):
        return
    elif kind == "json_to_metadata":
        context.imply("`match.model` reads the model from the body", item)
    else:
        context.omit(item, _OTHERS.get(kind, "the fleet file has no key for this filter"), manager.path)


def _kind(item: ConfigView) -> str:
    """Return the kind of a filter, or an empty string if it is not one of Envoy's own."""
    typed, discovery = item.get("typed_config"), item.get("config_discovery")
    names = {each.text.rpartition("/")[2] for each in discovery.get("type_urls")} if discovery else {typed.type}
    if typed.type.endswith(".TypedStruct"):
        names = {typed.get("type_url").text.rpartition("/")[2]}
    name = names.pop() if len(names) == 1 else ""
    parts = name.split(".")
    if len(parts) > 5 and parts[:4] == ["envoy", "extensions", "filters", "http"]:
        return parts[4]
    is_named = (name in _WITHOUT_TYPE and not discovery) or name.startswith("envoy.")
    return item.get("name").text.rpartition(".")[2] if is_named else ""


def _paths(typed: ConfigView) -> Iterator[dict[str, Any]]:
    for header in typed.get("headers"):
        path = header.get("string_match", "exact").text or header.get("exact_match").text
        if header.get("name").text == ":path" and path:
            yield {"path": path}


def _limit(typed: ConfigView) -> dict[str, Any] | None:
    bucket = typed.get("token_bucket")
    tokens = bucket.get("tokens_per_fill").number or 1
    interval = bucket.get("fill_interval").milliseconds
    if not interval or typed.get("descriptors"):
        return None
    for unit, size in (("s", 1000), ("m", 60_000), ("h", 3_600_000)):
        if tokens * size % interval == 0:
            burst = {"burst": number} if (number := bucket.get("max_tokens").number) else {}
            return {"by": "all", "rate": f"{tokens * size // interval}/{unit}", **burst}
    return None

"""Checks of the Envoy configuration that a comparison runs in place of a hostile one.

These tables are separate from `lbctl.importer.compare.sources` on purpose; an entry added there must be added here too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.hostile import Guard

_NAMES = """
    action address allowed_headers allowed_upstream_headers any append append_action authorization_request
    authorization_response auto_host_rewrite body certificate_chain circuit_breakers cluster cluster_name cluster_type
    clusters common_http_protocol_options common_tls_context connect_timeout direct_response disabled domains endpoint
    endpoints exact explicit_http_config filename filter_chains filters header headers host_rewrite_literal hostname
    http2_protocol_options http_filters http_protocol_options http_service inline_string key lb_endpoints lb_policy
    listeners load_assignment load_balancing_weight locality match max_direct_response_body_size_bytes
    max_request_bytes name patterns permissions policies port_value prefix principals priority private_key regex route
    request_headers_to_add request_headers_to_remove response_headers_to_add response_headers_to_remove retry_on
    retry_policy route_config routes rules safe_regex server_uri socket_address stat_prefix static_resources status
    timeout tls_certificates transport_socket type typed_config typed_extension_protocol_options
    typed_per_filter_config uri users value virtual_hosts weight weighted_clusters
"""
_FIELDS = frozenset(_NAMES.split())
_FREE = frozenset({"typed_per_filter_config", "policies", "typed_extension_protocol_options"})
"""Fields whose keys are names."""
_TYPES = re.compile(
    r"type\.googleapis\.com/envoy\.extensions\.(?:clusters\.aggregate\.v3\.ClusterConfig"
    r"|filters\.http\.(?:basic_auth\.v3\.BasicAuth|buffer\.v3\.Buffer|ext_authz\.v3\.ExtAuthz(?:PerRoute)?|rbac\.v3\.RBAC"
    r"|router\.v3\.Router)|filters\.network\.http_connection_manager\.v3\.HttpConnectionManager"
    r"|transport_sockets\.tls\.v3\.DownstreamTlsContext|upstreams\.http\.v3\.HttpProtocolOptions)"
)
_COMMAND = re.compile(r"%(?!REQ\()[A-Z_]+(?:\(|%)")


def envoy(text: str, own: Path, guard: Guard) -> Iterator[str]:
    """Yield everything in an Envoy configuration that must not be there."""
    yield from _walk(json.loads(text), "", str(own / "stand-in.pem"))
    del guard


def _walk(value: Any, around: str, pem: str) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _walk(item, around, pem)
    elif isinstance(value, dict):
        for name, item in value.items():
            if not (around in _FREE or name in _FIELDS or (name == "@type" and _TYPES.fullmatch(item))):
                yield f"{around}: {name}: {item}"
            if (name, around) == ("address", "socket_address") and item != "127.0.0.1":
                yield f"{name}: {item}"
            if name == "filename" and item != pem:
                yield f"{name}: {item}"
            yield from _walk(item, name, pem)
    elif isinstance(value, str) and _COMMAND.search(value):
        yield f"{around}: {value}"

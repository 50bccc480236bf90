"""The fields of an Envoy configuration that a comparison runs, none of which accesses files or other services."""

from __future__ import annotations

from collections.abc import Mapping

from lbctl.importer.compare.places import STAND_IN_TIMEOUT
from lbctl.importer.compare.sources.envoy_shapes import (
    Shape,
    boolean,
    duration,
    ignored,
    items,
    mapping,
    message,
    named,
    number,
    struct,
    text,
    typed,
    word,
)
from lbctl.importer.compare.sources.removed import Removals
from lbctl.importer.envoy.view import ConfigView

_LOGS, _HEALTH, _CONNECTIONS, _ELSEWHERE = "logs and metrics", "health checks", "connection limits", ""
_RESOLVERS, _TLS, _QUOTAS = "resolvers", "TLS to replicas", "rate limits from an external service"


def _subjects(table: Mapping[str, str]) -> dict[str, str]:
    return {name: subject for subject, names in table.items() for name in names.split()}


# ── Parts ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_REGEX = message({"regex": text}, _subjects({_ELSEWHERE: "google_re2"}))
_REGEX_REWRITE = message({"pattern": _REGEX, "substitution": text})
_STRING = message(
    {"exact": text, "prefix": text, "suffix": text, "contains": text, "safe_regex": _REGEX, "ignore_case": boolean}
)
_STRINGS = message({"patterns": items(_STRING)})
_FRACTION = message({"numerator": number, "denominator": word})
_RUNTIME_FRACTION = message({"default_value": _FRACTION}, _subjects({_ELSEWHERE: "runtime_key"}))
_HEADER_MATCH = message(
    {
        "name": text, "exact_match": text, "prefix_match": text, "suffix_match": text, "contains_match": text,
        "safe_regex_match": _REGEX, "range_match": message({"start": number, "end": number}), "present_match": boolean,
        "string_match": _STRING, "invert_match": boolean, "treat_missing_header_as_empty": boolean,
    }
)  # fmt: skip
_HEADER = message({"key": text, "value": text})
_HEADER_OPTION = message({"header": _HEADER, "append": boolean, "append_action": word, "keep_empty_value": boolean})
_METADATA_MATCH = message(
    {
        "filter": text, "path": items(message({"key": text})), "invert": boolean,
        "value": message({"string_match": _STRING, "bool_match": boolean, "present_match": boolean,
                          "null_match": message({}), "double_match": message({"exact": number})}),
    }
)  # fmt: skip
_HEADERS: dict[str, Shape] = {
    "request_headers_to_add": items(_HEADER_OPTION), "request_headers_to_remove": items(text),
    "response_headers_to_add": items(_HEADER_OPTION), "response_headers_to_remove": items(text),
}  # fmt: skip
_INLINE = message({"inline_string": text})
"""A data source that is neither a file nor an environment variable."""
_CIDR = message({"address_prefix": text, "prefix_len": number})

# ── Filters ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_LOCAL_LIMIT = message(
    {
        "stat_prefix": text, "status": message({"code": word}), "filter_enabled": _RUNTIME_FRACTION,
        "filter_enforced": _RUNTIME_FRACTION, "response_headers_to_add": items(_HEADER_OPTION),
        "token_bucket": message({"max_tokens": number, "tokens_per_fill": number, "fill_interval": duration}),
        "request_headers_to_add_when_not_enforced": items(_HEADER_OPTION), "enable_x_ratelimit_headers": word,
        "local_rate_limit_per_downstream_connection": boolean, "rate_limited_as_resource_exhausted": boolean,
    },
    _subjects(
        {"limits with descriptors": "descriptors rate_limits stage vh_rate_limits always_consume_default_token_bucket"
         " max_dynamic_descriptors"}
    ),
)  # fmt: skip
_KEY_VALUE = message({"metadata_namespace": text, "key": text, "value": text, "type": word,
                      "preserve_existing_metadata_value": boolean})  # fmt: skip
_JSON_RULES = message(
    {
        "rules": items(message({"selectors": items(message({"key": text})), "on_present": _KEY_VALUE,
                                "on_missing": _KEY_VALUE, "on_error": _KEY_VALUE})),
        "allow_content_types": items(text), "allow_empty_content_type": boolean, "allow_content_types_regex": _REGEX,
    }
)  # fmt: skip
_REQUEST_TO_SERVICE = message({"allowed_headers": _STRINGS, "headers_to_add": items(_HEADER)})
_ANSWER_OF_SERVICE = message(
    dict.fromkeys(
        ("allowed_upstream_headers", "allowed_upstream_headers_to_append", "allowed_client_headers",
         "allowed_client_headers_on_success", "dynamic_metadata_from_headers"),
        _STRINGS,
    )
)  # fmt: skip


def _patient(view: ConfigView, removals: Removals) -> str:
    """Return the timeout for the replacement service, which is independent of the original service's timeout."""
    del view, removals
    return STAND_IN_TIMEOUT


_SERVICE = message(
    {
        "server_uri": message({"uri": text, "cluster": text, "timeout": _patient}), "path_prefix": text,
        "authorization_request": _REQUEST_TO_SERVICE, "authorization_response": _ANSWER_OF_SERVICE,
    },
    _subjects({"retries": "retry_policy"}),
)  # fmt: skip
_EXTERNAL = message(
    {
        "http_service": _SERVICE, "transport_api_version": word, "failure_mode_allow": boolean,
        "failure_mode_allow_header_add": boolean, "clear_route_cache": boolean, "stat_prefix": text,
        "status_on_error": message({"code": word}), "allowed_headers": _STRINGS, "disallowed_headers": _STRINGS,
        "with_request_body": message({"max_request_bytes": number, "allow_partial_message": boolean,
                                      "pack_as_bytes": boolean}),
        "include_peer_certificate": boolean, "include_tls_session": boolean, "validate_mutations": boolean,
        "filter_enabled": _RUNTIME_FRACTION, "encode_raw_headers": boolean,
    },
    _subjects({_LOGS: "charge_cluster_response_stats emit_filter_state_stats"}),
)  # fmt: skip


def _permission(view: ConfigView, removals: Removals) -> dict[str, object]:
    return _PERMISSION(view, removals)  # type: ignore[no-any-return]


def _principal(view: ConfigView, removals: Removals) -> dict[str, object]:
    return _PRINCIPAL(view, removals)  # type: ignore[no-any-return]


_URL_PATH = message({"path": _STRING})
_PERMISSION = message(
    {
        "and_rules": message({"rules": items(_permission)}), "or_rules": message({"rules": items(_permission)}),
        "not_rule": _permission, "any": boolean, "header": _HEADER_MATCH, "url_path": _URL_PATH,
        "destination_ip": _CIDR, "destination_port": number, "metadata": _METADATA_MATCH,
        "destination_port_range": message({"start": number, "end": number}),
        "requested_server_name": _STRING,
    }
)  # fmt: skip
_PRINCIPAL = message(
    {
        "and_ids": message({"ids": items(_principal)}), "or_ids": message({"ids": items(_principal)}),
        "not_id": _principal, "any": boolean, "header": _HEADER_MATCH, "url_path": _URL_PATH, "source_ip": _CIDR,
        "direct_remote_ip": _CIDR, "remote_ip": _CIDR, "metadata": _METADATA_MATCH,
        "authenticated": message({"principal_name": _STRING}),
    }
)  # fmt: skip
_POLICY = message({"permissions": items(_permission), "principals": items(_principal)})
_RBAC = message(
    {"rules": message({"action": word, "policies": mapping(_POLICY)})},
    _subjects({_LOGS: "shadow_rules shadow_rules_stat_prefix rules_stat_prefix track_per_rule_stats"}),
)
_BUFFER = message({"max_request_bytes": number})
_CORS = message(
    {
        "allow_origin_string_match": items(_STRING), "allow_methods": text, "allow_headers": text,
        "expose_headers": text, "max_age": text, "allow_credentials": boolean, "filter_enabled": _RUNTIME_FRACTION,
        "allow_private_network_access": boolean, "forward_not_matching_preflights": boolean,
    }
)  # fmt: skip
_FILTERS = "envoy.extensions.filters.http."
FILTERS: dict[str, Shape] = {
    f"{_FILTERS}router.v3.Router": message(
        dict.fromkeys(("suppress_envoy_headers", "respect_expected_rq_timeout", "dynamic_stats"), boolean)
        | {"strict_check_headers": items(text)},
        _subjects(
            {_LOGS: "upstream_log upstream_log_options start_child_span suppress_grpc_request_failure_code_stats"}
        ),
    ),
    f"{_FILTERS}health_check.v3.HealthCheck": message(
        {"pass_through_mode": boolean, "cache_time": duration, "headers": items(_HEADER_MATCH),
         "cluster_min_healthy_percentages": mapping(message({"value": number}))}
    ),
    f"{_FILTERS}local_ratelimit.v3.LocalRateLimit": _LOCAL_LIMIT,
    f"{_FILTERS}buffer.v3.Buffer": _BUFFER,
    f"{_FILTERS}json_to_metadata.v3.JsonToMetadata": message(
        {"request_rules": _JSON_RULES, "response_rules": _JSON_RULES}
    ),
    f"{_FILTERS}cors.v3.Cors": message({}),
    f"{_FILTERS}ext_authz.v3.ExtAuthz": _EXTERNAL,
    f"{_FILTERS}basic_auth.v3.BasicAuth": message(
        {"users": _INLINE, "forward_username_header": text, "authentication_header": text}
    ),
    f"{_FILTERS}rbac.v3.RBAC": _RBAC,
}  # fmt: skip
"""Maps each filter type that is run to its fields."""
_LEFT_OUT = """
    adaptive_concurrency admission_control alternate_protocols_cache api_key_auth aws_request_signing bandwidth_limit
    cdn_loop compressor credential_injector csrf decompressor ext_proc fault gcp_authn geoip golang grpc_http1_bridge
    grpc_stats grpc_web header_mutation header_to_metadata jwt_authn lua oauth2 on_demand rate_limit_quota ratelimit
    set_filter_state set_metadata stateful_session tap wasm
"""
FILTERS_LEFT_OUT = frozenset(_LEFT_OUT.split())
"""Packages of filters that are not run on either side, because they run code, call services, or are the fleet's own
filters."""
_OF_ROUTES = {
    "envoy.config.route.v3.FilterConfig": message({"disabled": boolean, "is_optional": boolean}),
    f"{_FILTERS}local_ratelimit.v3.LocalRateLimit": _LOCAL_LIMIT,
    f"{_FILTERS}buffer.v3.BufferPerRoute": message({"disabled": boolean, "buffer": _BUFFER}),
    f"{_FILTERS}cors.v3.CorsPolicy": _CORS,
    f"{_FILTERS}ext_authz.v3.ExtAuthzPerRoute": message({"disabled": boolean}),
    f"{_FILTERS}basic_auth.v3.BasicAuthPerRoute": message({"users": _INLINE}),
    f"{_FILTERS}rbac.v3.RBACPerRoute": message({"rbac": _RBAC}),
}
FILTER_OF_ROUTE = typed(_OF_ROUTES)
"""Route-level settings for a filter."""


def filter_package(name: str) -> str:
    """Return the package of a filter type, such as `lua`, or an empty string if it is not an HTTP filter."""
    return name[len(_FILTERS) :].partition(".")[0] if name.startswith(_FILTERS) else ""


# ── Routes ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_DURATION_OF_REQUEST = message(
    dict.fromkeys(("max_stream_duration", "grpc_timeout_header_max", "grpc_timeout_header_offset"), duration)
)
_RETRY = message(
    {
        "retry_on": text, "num_retries": number, "per_try_timeout": duration, "per_try_idle_timeout": duration,
        "host_selection_retry_max_attempts": number, "retriable_status_codes": items(number),
        "retry_back_off": message({"base_interval": duration, "max_interval": duration}),
        "retriable_headers": items(_HEADER_MATCH), "retriable_request_headers": items(_HEADER_MATCH),
    },
    _subjects({"retries": "retry_priority retry_host_predicate retry_options_predicates rate_limited_retry_back_off"}),
)  # fmt: skip
MIRROR = message({"cluster": text, "runtime_fraction": _RUNTIME_FRACTION, "disable_shadow_host_suffix_append": boolean,
                  "host_rewrite_literal": text}, _subjects({_LOGS: "trace_sampled"}))  # fmt: skip
MIRRORS = items(MIRROR)
_HASH = message(
    {
        "header": message({"header_name": text, "regex_rewrite": _REGEX_REWRITE}), "terminal": boolean,
        "cookie": message({"name": text, "ttl": duration, "path": text,
                           "attributes": items(message({"name": text, "value": text}))}),
        "query_parameter": message({"name": text}),
        "connection_properties": message({"source_ip": boolean}),
    }
)  # fmt: skip
_UPGRADES = items(message({"upgrade_type": word, "enabled": boolean}))
_WEIGHTED = message(
    {"name": text, "weight": number, "host_rewrite_literal": text, **_HEADERS},
    _subjects({_ELSEWHERE: "metadata_match"}),
)
MATCH = message(
    {
        "prefix": text, "path": text, "path_separated_prefix": text, "safe_regex": _REGEX, "case_sensitive": boolean,
        "runtime_fraction": _RUNTIME_FRACTION, "headers": items(_HEADER_MATCH),
        "query_parameters": items(message({"name": text, "string_match": _STRING, "present_match": boolean})),
        "tls_context": message({"presented": boolean, "validated": boolean}), "grpc": message({}),
        "dynamic_metadata": items(_METADATA_MATCH),
    }
)  # fmt: skip
"""The requests that a route handles."""
_FORWARD = message(
    {
        "cluster": text,
        "weighted_clusters": message({"clusters": items(_WEIGHTED), "total_weight": number},
                                     _subjects({_ELSEWHERE: "runtime_key_prefix"})),
        "cluster_not_found_response_code": word, "prefix_rewrite": text, "regex_rewrite": _REGEX_REWRITE,
        "host_rewrite_literal": text, "auto_host_rewrite": boolean, "host_rewrite_header": text,
        "host_rewrite_path_regex": _REGEX_REWRITE, "append_x_forwarded_host": boolean, "timeout": duration,
        "idle_timeout": duration, "flush_timeout": duration, "retry_policy": _RETRY,
        "request_mirror_policies": MIRRORS, "priority": word, "hash_policy": items(_HASH),
        "max_grpc_timeout": duration, "grpc_timeout_offset": duration, "upgrade_configs": _UPGRADES,
        "internal_redirect_policy": message({"max_internal_redirects": number, "allow_cross_scheme_redirect": boolean,
                                             "redirect_response_codes": items(number)}),
        "max_stream_duration": _DURATION_OF_REQUEST,
    },
    _subjects({_QUOTAS: "rate_limits include_vh_rate_limits"}),
)  # fmt: skip
_REDIRECT = message(
    {
        "https_redirect": boolean, "scheme_redirect": text, "host_redirect": text, "port_redirect": number,
        "path_redirect": text, "prefix_rewrite": text, "regex_rewrite": _REGEX_REWRITE, "response_code": word,
        "strip_query": boolean,
    }
)  # fmt: skip
ROUTE = message(
    {
        "match": MATCH, "route": _FORWARD, "redirect": _REDIRECT,
        "direct_response": message({"status": number, "body": _INLINE}),
        "per_request_buffer_limit_bytes": number, "request_body_buffer_limit": number, **_HEADERS,
    },
    _subjects({_ELSEWHERE: "name metadata typed_per_filter_config", _LOGS: "decorator tracing stat_prefix"}),
)  # fmt: skip
"""A route. Its settings for filters are read separately."""
HOST = message(
    {
        "name": text, "require_tls": word, "include_request_attempt_count": boolean,
        "include_attempt_count_in_response": boolean, "include_is_timeout_retry_header": boolean,
        "retry_policy": _RETRY, "per_request_buffer_limit_bytes": number, "request_body_buffer_limit": number,
        "request_mirror_policies": MIRRORS, **_HEADERS,
    },
    _subjects(
        {
            _ELSEWHERE: "domains routes metadata typed_per_filter_config",
            _LOGS: "virtual_clusters",
            _QUOTAS: "rate_limits",
        }
    ),
)  # fmt: skip
"""A virtual host without its domains and routes."""
ROUTES = message(
    {
        "name": text, "internal_only_headers": items(text), "most_specific_header_mutations_wins": boolean,
        "max_direct_response_body_size_bytes": number, "ignore_port_in_host_matching": boolean,
        "ignore_path_parameters_in_path_matching": boolean, "request_mirror_policies": MIRRORS, **_HEADERS,
    },
    _subjects(
        {_ELSEWHERE: "virtual_hosts metadata typed_per_filter_config validate_clusters cluster_specifier_plugins"}
    ),
)  # fmt: skip
"""A route configuration without its virtual hosts. A route that uses a plugin to find its cluster is rejected."""

# ── Listeners ────────────────────────────────────────────────────────────────────────────────────────────────────────

_PROTOCOL = message(
    {
        "idle_timeout": duration, "max_connection_duration": duration, "max_headers_count": number,
        "max_response_headers_kb": number, "max_stream_duration": duration, "headers_with_underscores_action": word,
        "max_requests_per_connection": number,
    }
)  # fmt: skip
_HTTP1 = message(
    {
        "allow_absolute_url": boolean, "accept_http_10": boolean, "default_host_for_http_10": text,
        "enable_trailers": boolean, "allow_chunked_length": boolean,
        "override_stream_error_on_invalid_http_message": boolean, "send_fully_qualified_url": boolean,
        "allow_custom_methods": boolean,
    },
    _subjects({_ELSEWHERE: "header_key_format use_balsa_parser"}),
)  # fmt: skip
_FORMAT = message({"text_format": text, "text_format_source": _INLINE, "json_format": struct, "content_type": text,
                   "omit_empty_values": boolean})  # fmt: skip


def _reply_filter(view: ConfigView, removals: Removals) -> dict[str, object]:
    return _REPLY_FILTER(view, removals)  # type: ignore[no-any-return]


_SEVERAL = message({"filters": items(_reply_filter)})
_REPLY_FILTER = message(
    {
        "status_code_filter": message({"comparison": message({"op": word, "value": message(
            {"default_value": number}, _subjects({_ELSEWHERE: "runtime_key"}))})}),
        "header_filter": message({"header": _HEADER_MATCH}), "and_filter": _SEVERAL, "or_filter": _SEVERAL,
        "response_flag_filter": message({"flags": items(word)}), "not_health_check_filter": message({}),
    }
)  # fmt: skip
_LOCAL_REPLY = message(
    {
        "mappers": items(message({"filter": _reply_filter, "status_code": number, "body": _INLINE,
                                  "body_format_override": _FORMAT, "headers_to_add": items(_HEADER_OPTION)})),
        "body_format": _FORMAT,
    }
)  # fmt: skip
_ADDRESS = "envoy.extensions.http.original_ip_detection."
_XFF = message({"xff_num_trusted_hops": number, "skip_xff_append": boolean})
_ADDRESS_HEADER = message({"header_name": text, "allow_extension_to_set_address_as_trusted": boolean,
                           "reject_with_status": message({"code": word})})  # fmt: skip
_ADDRESSES = {f"{_ADDRESS}xff.v3.XffConfig": _XFF, f"{_ADDRESS}custom_header.v3.CustomHeaderConfig": _ADDRESS_HEADER}
MANAGER = message(
    {
        "codec_type": word, "stat_prefix": text, "add_user_agent": boolean, "http_protocol_options": _HTTP1,
        "common_http_protocol_options": _PROTOCOL, "server_name": text, "server_header_transformation": word,
        "scheme_header_transformation": message({"scheme_to_overwrite": word, "match_upstream": boolean}),
        "max_request_headers_kb": number, "stream_idle_timeout": duration, "request_timeout": duration,
        "request_headers_timeout": duration, "use_remote_address": boolean, "xff_num_trusted_hops": number,
        "internal_address_config": message({"unix_sockets": boolean, "cidr_ranges": items(_CIDR)}),
        "skip_xff_append": boolean, "via": text, "generate_request_id": boolean,
        "preserve_external_request_id": boolean, "always_set_request_id_in_response": boolean,
        "forward_client_cert_details": word, "proxy_100_continue": boolean,
        "set_current_client_cert_details": message(
            {"subject": boolean, "cert": boolean, "chain": boolean, "dns": boolean, "uri": boolean}
        ),
        "represent_ipv4_remote_address_as_ipv4_mapped_ipv6": boolean, "upgrade_configs": _UPGRADES,
        "normalize_path": boolean, "merge_slashes": boolean, "path_with_escaped_slashes_action": word,
        "strip_matching_host_port": boolean, "strip_any_host_port": boolean, "strip_trailing_host_dot": boolean,
        "stream_error_on_invalid_http_message": boolean, "append_x_forwarded_port": boolean,
        "stream_flush_timeout": duration, "local_reply_config": _LOCAL_REPLY, "append_local_overload": boolean,
        "original_ip_detection_extensions": items(
            message({"name": text, "typed_config": typed(_ADDRESSES)})
        ),
    },
    _subjects(
        {
            _LOGS: "access_log access_log_flush_interval flush_access_log_on_new_request access_log_options tracing",
            _CONNECTIONS: "http2_protocol_options http3_protocol_options drain_timeout delayed_close_timeout",
            _ELSEWHERE: "route_config rds http_filters request_id_extension",
        }
    ),
)  # fmt: skip
"""A connection manager without its routes and filters."""
LISTENER = message(
    {},
    _subjects(
        {
            _ELSEWHERE: "name address listener_filters filter_chains default_filter_chain stat_prefix traffic_direction"
            " metadata",
            _LOGS: "access_log",
            _CONNECTIONS: "per_connection_buffer_limit_bytes tcp_backlog_size listener_filters_timeout bind_to_port"
            " continue_on_listener_filters_timeout drain_type enable_reuse_port reuse_port socket_options freebind"
            " transparent tcp_fast_open_queue_length connection_balance_config additional_addresses"
            " ignore_global_conn_limit max_connections_to_accept_per_socket_event enable_mptcp",
        }
    ),
)
"""Other fields in a listener."""
CHAIN = message(
    {},
    _subjects(
        {
            _ELSEWHERE: "name filters filter_chain_match transport_socket metadata",
            _CONNECTIONS: "transport_socket_connect_timeout use_proxy_proto",
        }
    ),
)
"""Other fields in a filter chain."""
CHAIN_MATCH = message({}, _subjects({"certificate selection": "server_names transport_protocol application_protocols"}))
"""Filter chain conditions that only select certificates."""
LISTENER_FILTERS = typed(
    dict.fromkeys(
        (
            "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector",
            "envoy.extensions.filters.listener.http_inspector.v3.HttpInspector",
            "envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol",
        ),
        message({}),
    )
)
"""Listener filters that do not affect responses."""

# ── Clusters ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_HTTP_OPTIONS = message(
    {
        "common_http_protocol_options": _PROTOCOL,
        "explicit_http_config": message({"http_protocol_options": _HTTP1, "http2_protocol_options": ignored}),
        "use_downstream_protocol_config": message({"http_protocol_options": _HTTP1,
                                                   "http2_protocol_options": ignored}),
    },
    _subjects({_TLS: "upstream_http_protocol_options", _CONNECTIONS: "auto_config"}),
)  # fmt: skip
_HTTP_OPTIONS_TYPE = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_THRESHOLD = message(
    {"priority": word, "max_connections": number, "max_pending_requests": number, "max_requests": number,
     "max_retries": number, "max_connection_pools": number},
    _subjects({_LOGS: "track_remaining", "retries": "retry_budget"}),
)  # fmt: skip
CLUSTER = message(
    {
        "name": text, "connect_timeout": duration,
        "circuit_breakers": message({"thresholds": items(_THRESHOLD)}, _subjects({_LOGS: "per_host_thresholds"})),
        "typed_extension_protocol_options": named({_HTTP_OPTIONS_TYPE: typed({_HTTP_OPTIONS_TYPE: _HTTP_OPTIONS})}),
    },
    _subjects(
        {
            _ELSEWHERE: "type lb_policy load_balancing_policy cluster_type load_assignment metadata alt_stat_name"
            " protocol_selection eds_cluster_config",
            _HEALTH: "health_checks outlier_detection ignore_health_on_host_removal"
            " close_connections_on_host_health_failure",
            _RESOLVERS: "dns_lookup_family dns_refresh_rate dns_failure_refresh_rate respect_dns_ttl dns_jitter"
            " dns_resolvers use_tcp_for_dns_lookups dns_resolution_config typed_dns_resolver_config"
            " wait_for_warm_on_init",
            _TLS: "transport_socket transport_socket_matches",
            _LOGS: "track_timeout_budgets track_cluster_stats lrs_server lrs_report_endpoint_metrics",
            _CONNECTIONS: "per_connection_buffer_limit_bytes http_protocol_options http2_protocol_options"
            " common_http_protocol_options upstream_http_protocol_options max_requests_per_connection"
            " upstream_bind_config upstream_connection_options cleanup_interval preconnect_policy"
            " connection_pool_per_downstream_connection common_lb_config",
            "load balancing": "ring_hash_lb_config maglev_lb_config least_request_lb_config"
            " round_robin_lb_config lb_subset_config original_dst_lb_config",
        }
    ),
)  # fmt: skip
"""A cluster without its type and endpoints."""
ASSIGNMENT = message({"cluster_name": text}, _subjects({_ELSEWHERE: "endpoints", _CONNECTIONS: "policy"}))
"""A cluster's endpoints without their groups."""
_LOCALITY = message({"region": text, "zone": text, "sub_zone": text})
ENDPOINTS = message(
    {"locality": _LOCALITY, "load_balancing_weight": number, "priority": number},
    _subjects({_ELSEWHERE: "lb_endpoints proximity metadata"}),
)
"""A group of endpoints without its endpoints."""
ENDPOINT = message(
    {"load_balancing_weight": number}, _subjects({_ELSEWHERE: "endpoint metadata", _HEALTH: "health_status"})
)
"""An endpoint without its address."""
POLICIES = frozenset({"ROUND_ROBIN", "LEAST_REQUEST", "RING_HASH", "RANDOM", "MAGLEV"})
"""Policies that select a replica."""
TYPED_POLICIES = {
    f"envoy.extensions.load_balancing_policies.{package}.v3.{name}": policy
    for package, name, policy in (
        ("round_robin", "RoundRobin", "ROUND_ROBIN"),
        ("least_request", "LeastRequest", "LEAST_REQUEST"),
        ("ring_hash", "RingHash", "RING_HASH"),
        ("random", "Random", "RANDOM"),
        ("maglev", "Maglev", "MAGLEV"),
    )
}
"""Maps each policy type to its name."""
KINDS = frozenset({"", "STATIC", "STRICT_DNS", "LOGICAL_DNS", "EDS"})
"""Kinds of clusters whose endpoints are replaced."""
TYPED_KINDS = frozenset({"envoy.extensions.clusters.dns.v3.DnsCluster"})
"""Types of clusters whose endpoints are replaced."""
AGGREGATE = typed({"envoy.extensions.clusters.aggregate.v3.ClusterConfig": message({"clusters": items(text)})})
"""A cluster that consists of other clusters."""

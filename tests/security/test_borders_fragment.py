"""Directives that a fragment inherits from the `http` block of its host. Each directive of nginx has a verdict here."""

from __future__ import annotations

import re
from functools import cache

import pytest
from crossplane import analyzer

from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot, view
from lbctl.targets.nginx import TARGET
from tests.support.fleet import compiled
from tests.support.fleets import fleet_text, pool
from tests.support.paths import ROOT

_FRAGMENT = Proxy("site", "nginx", (1, 22), form="fragment", config="/etc/nginx/conf.d/lbctl.conf")
_NEWER = """
acme_shared_zone add_header_inherit add_trailer_inherit auth_delay auth_jwt_require auth_jwt_type early_hints
grpc_ssl_certificate_cache grpc_ssl_conf_command grpc_ssl_key_log http2 http3 http3_hq http3_max_concurrent_streams
http3_stream_buffer_size js_engine js_fetch_buffer_size js_fetch_ciphers js_fetch_max_response_buffer_size
js_fetch_protocols js_fetch_timeout js_fetch_trusted_certificate js_fetch_verify js_fetch_verify_depth js_import
js_preload_object js_shared_dict_zone js_var keepalive_min_timeout keepalive_time otel_exporter otel_service_name
otel_span_attr otel_span_name otel_trace otel_trace_context proxy_cookie_flags proxy_pass_trailers
proxy_ssl_certificate_cache proxy_ssl_conf_command proxy_ssl_key_log quic_active_connection_id_limit quic_bpf quic_gso
quic_host_key quic_retry ssl_certificate_cache ssl_certificate_compression ssl_conf_command ssl_ech_file ssl_key_log
ssl_ocsp ssl_ocsp_cache ssl_ocsp_responder ssl_reject_handshake userid_flags max_headers
"""
"""Directives of `http` in nginx versions that are newer than the table of crossplane."""
_RESET = """
add_after_body add_before_body autoindex charset chunked_transfer_encoding client_body_buffer_size
client_body_in_file_only client_header_buffer_size client_header_timeout client_max_body_size default_type expires
grpc_bind grpc_buffer_size grpc_ignore_headers grpc_intercept_errors grpc_socket_keepalive grpc_ssl_certificate
grpc_ssl_certificate_key gunzip gzip http2_push http2_push_preload ignore_invalid_headers keepalive_requests
keepalive_timeout large_client_header_buffers limit_conn limit_conn_dry_run limit_rate limit_req limit_req_dry_run
limit_req_status log_subrequest merge_slashes mirror msie_padding msie_refresh proxy_bind proxy_buffer_size
proxy_buffering proxy_buffers proxy_cache proxy_cookie_domain proxy_cookie_flags proxy_cookie_path proxy_force_ranges
proxy_headers_hash_bucket_size proxy_headers_hash_max_size proxy_ignore_client_abort proxy_ignore_headers
proxy_intercept_errors proxy_limit_rate proxy_method proxy_pass_request_body proxy_pass_request_headers proxy_redirect
proxy_request_buffering proxy_socket_keepalive proxy_ssl_certificate proxy_ssl_certificate_key proxy_store
recursive_error_pages reset_timedout_connection rewrite_log satisfy server_tokens set_real_ip_from ssi ssl_certificate
ssl_certificate_key ssl_early_data ssl_protocols ssl_session_cache ssl_trusted_certificate sub_filter tcp_nodelay types
underscores_in_headers uninitialized_variable_warn userid access_log add_header error_page
"""
"""Written in each server of a fragment."""
_IN_LOCATIONS = """
grpc_connect_timeout grpc_hide_header grpc_next_upstream grpc_next_upstream_timeout grpc_next_upstream_tries
grpc_read_timeout grpc_send_timeout grpc_set_header limit_conn_status proxy_connect_timeout proxy_hide_header
proxy_http_version proxy_next_upstream proxy_next_upstream_timeout proxy_next_upstream_tries proxy_read_timeout
proxy_send_timeout proxy_set_header send_timeout
"""
"""Written in each location that forwards."""
_DOCUMENTED = """
add_trailer allow auth_basic auth_jwt auth_request dav_methods deny early_hints error_log grpc_ssl_key_log otel_trace
proxy_pass_trailers proxy_set_body proxy_ssl_key_log resolver ssl_ciphers ssl_key_log
ssl_session_ticket_key
"""
"""Directives that users must know about; docs/reference/fragments.md names each of them."""
_HARMLESS = {
    "an object with a name, which nothing of the fragment uses": (
        "charset_map geo geoip_.* js_.* keyval.* limit_.*_zone limit_zone log_format map match perl_.* server"
        " session_log.* split_clients status_format upstream xslt_.*param include acme_.* auth_jwt_claim_set"
        " auth_jwt_header_set auth_request_set"
    ),
    "a module to which the fragment passes no request": "(fastcgi|memcached|scgi|uwsgi)_.* f4f_.* hls_.* mp4_.*",
    "a detail of a feature that the fragment turns off": (
        "addition_types ancient_browser.* autoindex_.* charset_types create_full_put_path dav_access gunzip_buffers"
        " gzip_.* image_filter_.* min_delete_depth mirror_request_body modern_browser.* override_charset"
        " proxy_(cache|no_cache|store|temp|max_temp|busy)_?.* real_ip_.* slice source_charset ssi_.* sub_filter_.*"
        " userid_.* xml_entities xslt_(last|types).* otel_.* secure_link.*"
    ),
    "files of the host; the fragment serves none": (
        "aio.* client_body_temp_path directio.* disable_symlinks etag if_modified_since index max_ranges"
        " open_file_cache.* open_log_file_cache read_ahead root sendfile.* tcp_nopush types_hash_.*"
    ),
    "sizes and times": (
        "auth_delay client_body_in_single_buffer client_body_timeout connection_pool_size http2_.* http3_.*"
        " keepalive_(disable|min_timeout|time) limit_(conn|req)_log_level limit_rate_after lingering_.*"
        " log_not_found map_hash_.* max_headers output_buffers postpone_output proxy_send_lowat quic_.*"
        " request_pool_size resolver_timeout send_lowat server_names_hash_.* spdy_.*"
        " subrequest_output_buffer_size variables_hash_.*"
    ),
    "only for redirects without a host; the fragment's have one": (
        "absolute_redirect port_in_redirect server_name_in_redirect"
    ),
    "the choice of headers that reach the client; it adds none": "(grpc|proxy)_pass_header",
    "what others must prove to the proxy, or cannot read; it only refuses more": (
        "auth_basic_user_file auth_jwt_(key|leeway|require|type).*"
        " (grpc|proxy)_ssl_(crl|session_reuse|verify|verify_depth|trusted_certificate)"
        " ssl_client_certificate ssl_crl ssl_ocsp.* ssl_reject_handshake ssl_stapling.* ssl_verify_.*"
    ),
    "how connections are encrypted; it weakens none of the versions that the fragment allows": (
        "ssl ssl_(buffer_size|certificate_cache|certificate_compression|conf_command|dhparam|ecdh_curve|ech_file"
        "|password_file|prefer_server_ciphers|session_tickets|session_timeout)"
        " (grpc|proxy)_ssl_(certificate_cache|ciphers|conf_command|name|password_file|protocols|server_name)"
        " http2 http3"
    ),
    "a switch that takes over fewer headers": "add_header_inherit add_trailer_inherit",
}
"""Reason → patterns of names."""


@cache
def _directives() -> frozenset[str]:
    table = analyzer.DIRECTIVES
    known = {name for name, masks in table.items() if any(mask & analyzer.NGX_HTTP_MAIN_CONF for mask in masks)}
    return frozenset(known | set(_NEWER.split()))


@cache
def _fragment() -> str:
    tls = {"certificates": [{"certificate": "c.crt", "key": "c.key"}]}
    text = fleet_text(
        pool(protocol="grpc"),
        listener={"tls": tls},
        routes={"plain": {"match": {"path_prefix": "/plain"}, "pool": "plain"}},
        pools={"plain": pool()},
    )
    rendered = TARGET.render(view(Snapshot(compiled(text).topology), _FRAGMENT)).main.text
    return rendered[rendered.index("server {\n        listen") :]


def _verdicts(name: str) -> list[str]:
    stated = {"reset": _RESET, "in locations": _IN_LOCATIONS, "documented": _DOCUMENTED}
    found = [verdict for verdict, names in stated.items() if name in names.split()]
    harmless = [why for why, names in _HARMLESS.items() if any(re.fullmatch(item, name) for item in names.split())]
    return found or harmless


@pytest.mark.parametrize("name", sorted(_directives()))
def test_each_directive_of_http_has_a_verdict(name: str) -> None:
    assert len(_verdicts(name)) == 1


@pytest.mark.parametrize("name", _RESET.split())
def test_fragment_resets_the_directive(name: str) -> None:
    assert name in _directives()
    server = _fragment().partition("location ")[0]
    assert re.search(rf"(^|[;\s]){name} [^;]*[;{{]", server)


@pytest.mark.parametrize("name", _IN_LOCATIONS.split())
def test_locations_of_a_fragment_set_the_directive(name: str) -> None:
    assert name in _directives()
    assert f" {name} " in _fragment()


@pytest.mark.parametrize("name", _DOCUMENTED.split())
def test_directive_that_holds_in_a_fragment_is_documented(name: str) -> None:
    assert name in _directives()
    assert f"`{name}`" in (ROOT / "docs" / "reference" / "fragments.md").read_text()

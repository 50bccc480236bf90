"""The nginx directives that a comparison runs, with the kinds of their arguments, and those that it omits.

If a directive is not in either table, the enclosing location or server is closed. For this reason, the first table
contains only directives that do not store, execute, connect, resolve, load or include anything. The second table
contains only directives that do not affect the compared responses. No directive contains a path on this machine.
"""

from __future__ import annotations

RUN: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            "absolute_redirect", "chunked_transfer_encoding", "grpc_intercept_errors", "http2",
            "ignore_invalid_headers", "limit_conn_dry_run", "limit_req_dry_run", "merge_slashes",
            "mirror_request_body", "port_in_redirect", "proxy_buffering", "proxy_intercept_errors",
            "proxy_pass_request_body", "proxy_pass_request_headers", "proxy_request_buffering",
            "real_ip_recursive", "recursive_error_pages", "server_name_in_redirect",
            "ssl_reject_handshake", "sub_filter_last_modified", "sub_filter_once",
            "underscores_in_headers"
        ),
        ("flag",),
    ),
    **dict.fromkeys(
        (
            "map_hash_bucket_size", "map_hash_max_size", "proxy_headers_hash_bucket_size",
            "proxy_headers_hash_max_size", "server_names_hash_bucket_size", "server_names_hash_max_size",
            "variables_hash_bucket_size", "variables_hash_max_size", "proxy_next_upstream_tries",
            "grpc_next_upstream_tries"
        ),
        ("number",),
    ),
    **dict.fromkeys(
        ("proxy_hide_header", "proxy_pass_header", "grpc_hide_header", "grpc_pass_header", "real_ip_header"),
        ("header",),
    ),
    **dict.fromkeys(("proxy_set_header", "grpc_set_header"), ("header text",)),
    **dict.fromkeys(("proxy_ignore_headers", "grpc_ignore_headers"), ("header+",)),
    **dict.fromkeys(
        ("proxy_next_upstream", "grpc_next_upstream"),
        (
            "word+",
        ),
    ),
    **dict.fromkeys(("proxy_next_upstream_timeout", "grpc_next_upstream_timeout"), ("time",)),
    **dict.fromkeys(("limit_req_status", "limit_conn_status"), ("status",)),
    **dict.fromkeys(("allow", "deny"), ("network", "=all")),
    **dict.fromkeys(("break", "internal", "empty_gif"), ("",)),
    "add_header": ("header text =always?",),
    "add_trailer": ("header text =always?",),
    "auth_basic": ("text",),
    "auth_request": ("text",),
    "auth_request_set": ("variable text",),
    "client_max_body_size": ("size",),
    "default_type": ("word",),
    "error_page": ("status+ changed? text",),
    "expires": ("=off|epoch|max", "=modified? plain"),
    "limit_conn": ("name number",),
    "max_headers": ("number",),
    "mirror": ("text",),
    "proxy_cookie_domain": ("=off", "text text", "regex text"),
    "proxy_cookie_flags": ("=off", "text word+"),
    "proxy_cookie_path": ("=off", "text text", "regex text"),
    "proxy_http_version": ("=1.0|1.1",),
    "proxy_method": ("text",),
    "proxy_redirect": ("=off|default", "text text", "regex text"),
    "proxy_set_body": ("text",),
    "return": ("status text?", "text"),
    "rewrite": ("regex text =last|break|redirect|permanent?",),
    "satisfy": ("=all|any",),
    "secure_link": ("text",),
    "secure_link_md5": ("text",),
    "secure_link_secret": ("plain",),
    "server_name": ("regex+",),
    "set": ("variable text",),
    "set_real_ip_from": ("network",),
    "stub_status": ("", "word"),
    "sub_filter": ("text text",),
    "sub_filter_types": ("word+",),
    "try_files": ("text text+",),
    "valid_referers": ("regex+",),
}  # fmt: skip
"""Maps directives in `http`, `server`, `location` and `if` to the kinds of their arguments, with one entry per
syntax."""

UPSTREAM: dict[str, tuple[str, ...]] = {
    "hash": ("text =consistent?",),
    "ip_hash": ("",),
    "least_conn": ("",),
    "random": ("=two? =least_conn?",),
}
"""Directives in `upstream`. `server` and `zone` are handled separately."""

_LEFT_OUT: dict[str, tuple[str, str]] = {
    "logs": (
        (
            "access_log error_log log_format log_not_found log_subrequest open_log_file_cache rewrite_log "
            "uninitialized_variable_warn limit_req_log_level limit_conn_log_level status_zone"
        ),
        "otel_ opentracing",
    ),
    "processes": (
        (
            "user pid daemon events env load_module lock_file master_process pcre_jit ssl_engine thread_pool "
            "timer_resolution working_directory debug_points google_perftools_profiles stream mail"
        ),
        "worker_",
    ),
    "name resolution": (
        "resolver resolver_timeout",
        "",
    ),
    "files of this machine": (
        "root alias index autoindex random_index disable_symlinks etag if_modified_since max_ranges types include",
        "autoindex_ open_file_cache types_hash_",
    ),
    "written files": (
        "client_body_in_file_only client_body_in_single_buffer",
        "client_body_temp_ proxy_store fastcgi_store uwsgi_store scgi_store",
    ),
    "caches": (
        "proxy_no_cache fastcgi_no_cache uwsgi_no_cache scgi_no_cache",
        "proxy_cache fastcgi_cache uwsgi_cache scgi_cache",
    ),
    "buffers, timeouts and rates": (
        (
            "auth_delay client_body_buffer_size client_body_timeout client_header_buffer_size client_header_timeout "
            "large_client_header_buffers connection_pool_size request_pool_size subrequest_output_buffer_size "
            "output_buffers postpone_output send_lowat send_timeout read_ahead reset_timedout_connection sendfile "
            "sendfile_max_chunk aio aio_write directio directio_alignment keepalive_timeout keepalive_requests "
            "keepalive_time keepalive_disable keepalive limit_rate limit_rate_after tcp_nodelay tcp_nopush "
            "accept_mutex proxy_bind proxy_buffer_size proxy_buffers proxy_busy_buffers_size proxy_connect_timeout "
            "proxy_force_ranges proxy_ignore_client_abort proxy_limit_rate proxy_read_timeout proxy_send_lowat "
            "proxy_send_timeout proxy_socket_keepalive grpc_bind grpc_buffer_size grpc_connect_timeout "
            "grpc_read_timeout grpc_send_timeout grpc_socket_keepalive server_tokens msie_padding msie_refresh"
        ),
        (
            "lingering_ http2_ http3_ quic_ proxy_temp_ proxy_max_temp_ fastcgi_temp_ uwsgi_temp_ scgi_temp_ "
            "fastcgi_max_temp_"
        ),
    ),
    "TLS": (
        "ssl",
        "ssl_ proxy_ssl_ grpc_ssl_ uwsgi_ssl_",
    ),
    "health checks": (
        "health_check match check",
        "check_",
    ),
    "compression and character sets": (
        "gzip gunzip brotli zstd source_charset override_charset charset charset_map charset_types",
        "gzip_ gunzip_ brotli_ zstd_ userid",
    ),
    "settings of other protocols and modules": (
        (
            "js_import js_include js_path js_set js_var js_preload_object js_periodic js_engine perl_modules "
            "perl_require perl_set geoip_country geoip_city geoip_org geoip_proxy geoip2 keyval keyval_zone "
            "memcached_buffer_size init_by_lua init_worker_by_lua init_by_lua_block init_worker_by_lua_block "
            "init_by_lua_file init_worker_by_lua_file"
        ),
        (
            "js_fetch_ js_shared_ lua_ geoip_proxy_ fastcgi_param fastcgi_index fastcgi_split fastcgi_buffer "
            "fastcgi_read_ fastcgi_send_ fastcgi_connect_ fastcgi_keep_ uwsgi_param uwsgi_buffer uwsgi_read_ scgi_param"
        ),
    ),
}
"""Maps the subject of directives that are omitted to their names and name prefixes."""

_REASONS = {name: reason for reason, (names, _) in _LEFT_OUT.items() for name in names.split()}
_PREFIXES = tuple((prefix, reason) for reason, (_, prefixes) in _LEFT_OUT.items() for prefix in prefixes.split())


def left_out(name: str) -> str:
    """Return the subject of a directive that is omitted, or "" if responses might differ without the directive."""
    if name in RUN:
        return ""
    return _REASONS.get(name) or next((reason for prefix, reason in _PREFIXES if name.startswith(prefix)), "")

"""Checks of the configuration that a comparison runs in place of a hostile one. A harmless one has no findings.

These tables are separate from `lbctl.importer.compare.sources` on purpose; an entry added there must be added here too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import crossplane

from lbctl.importer.haproxy.tokens import split_line
from tests.security.hostile_envoy import envoy
from tests.support.hostile import Guard

_LOOPBACK = r"127\.0\.0\.1:\d+"
# ── nginx ────────────────────────────────────────────────────────────────────────────────────────────────────────────
_NGINX_NAMES = """
    absolute_redirect access_log add_header add_trailer allow auth_basic auth_basic_user_file auth_request
    auth_request_set break chunked_transfer_encoding client_body_temp_path client_max_body_size default_type deny
    empty_gif error_page events expires fastcgi_temp_path geo grpc_hide_header grpc_ignore_headers grpc_intercept_errors
    grpc_next_upstream grpc_next_upstream_timeout grpc_next_upstream_tries grpc_pass grpc_pass_header grpc_set_header
    hash http http2 if ignore_invalid_headers internal ip_hash least_conn limit_conn limit_conn_dry_run
    limit_conn_status limit_conn_zone limit_except limit_req limit_req_dry_run limit_req_status limit_req_zone listen
    location map map_hash_bucket_size map_hash_max_size max_headers merge_slashes mirror mirror_request_body
    port_in_redirect proxy_buffering proxy_cookie_domain proxy_cookie_flags proxy_cookie_path
    proxy_headers_hash_bucket_size proxy_headers_hash_max_size proxy_hide_header proxy_http_version
    proxy_ignore_headers proxy_intercept_errors proxy_method proxy_next_upstream proxy_next_upstream_timeout
    proxy_next_upstream_tries proxy_pass proxy_pass_header proxy_pass_request_body proxy_pass_request_headers
    proxy_redirect proxy_request_buffering proxy_set_body proxy_set_header proxy_temp_path random real_ip_header
    real_ip_recursive recursive_error_pages return rewrite root satisfy scgi_temp_path secure_link secure_link_md5
    secure_link_secret server server_name server_name_in_redirect server_names_hash_bucket_size
    server_names_hash_max_size set set_real_ip_from split_clients ssl_certificate ssl_certificate_key
    ssl_reject_handshake stub_status sub_filter sub_filter_last_modified sub_filter_once sub_filter_types try_files
    underscores_in_headers upstream uwsgi_temp_path valid_referers variables_hash_bucket_size variables_hash_max_size
    zone
"""
_NGINX = frozenset(_NGINX_NAMES.split())
_NGINX_PATHS = re.compile(r"root|auth_basic_user_file|ssl_certificate(?:_key)?|\w+_temp_path|access_log")
_NGINX_PASS = re.compile(
    rf"(?:http|grpc)://(?:{_LOOPBACK}|(?!unix|[\d.]+(?:[/?$]|$))[\w.-]+|\$\{{lbctl_\w+\}})(?:[/?].*|\$\{{lbctl_path_\d+\}}.*)?"
)
_NGINX_ENTRIES = frozenset({"map", "geo", "split_clients"})


def nginx(text: str, own: Path, guard: Guard) -> Iterator[str]:
    """Yield everything in an nginx configuration that must not be there."""
    file = own / "checked"
    file.write_text(text)
    result = crossplane.parse(str(file), single=True, strict=False, check_ctx=False, check_args=False)
    file.unlink()
    yield from (str(error["error"]) for error in result["errors"])
    yield from _nginx_block(result["config"][0]["parsed"], "", str(own))
    del guard


def _nginx_block(items: list[dict[str, Any]], around: str, own: str) -> Iterator[str]:
    for item in items:
        name, args = item["directive"], item["args"]
        harmless = _is_entry if around in _NGINX_ENTRIES else _is_directive
        if not harmless(name, args, around, own):
            yield " ".join([name, *args])
        if name == "map" and args[-1].startswith(("$lbctl_host", "$lbctl_http", "$lbctl_grpc")):
            values = [value for entry in item["block"] for value in entry["args"]]
            yield from (f"{args[-1]} {value}" for value in values if value and not _is_destination(value))
        yield from _nginx_block(item.get("block", []), name, own)


def _is_entry(name: str, args: list[str], around: str, _own: str) -> bool:
    return name != "include" and (around != "map" or len(args) <= 1)


def _is_directive(name: str, args: list[str], around: str, own: str) -> bool:
    if name == "listen" or (name, around) == ("server", "upstream"):
        return re.fullmatch(_LOOPBACK, args[0]) is not None
    if _NGINX_PATHS.fullmatch(name):
        return args == ["off"] or (len(args) == 1 and args[0].startswith(f"{own}/"))
    if name.endswith("_pass"):
        return len(args) == 1 and _NGINX_PASS.fullmatch(args[0]) is not None
    return name in _NGINX and not (name == "if" and args[0].startswith(("-", "!-")))


def _is_destination(value: str) -> bool:
    return re.fullmatch(rf"{_LOOPBACK}|(?!unix|[\d.]+$)[\w.-]+", value) is not None


# ── HAProxy ──────────────────────────────────────────────────────────────────────────────────────────────────────────
_HAPROXY_NAMES = """
    acl backend balance bind capture cookie declare default_backend defaults disabled enabled errorloc errorloc302
    errorloc303 force-persist frontend global group hash-balance-factor hash-type http-after-response http-request
    http-response http-send-name-header ignore-persist listen maxconn mode monitor-uri no option redirect retries
    retry-on server stick stick-table tcp-request tcp-response timeout unique-id-format unique-id-header use-server
    use_backend user userlist
"""
_HAPROXY = frozenset(_HAPROXY_NAMES.split())
_HAPROXY_WORDS = re.compile(
    r"-[fMu]|file|lf-file|errorfile|errorfiles|lua\..*|use-service|send-spoe-group|do-resolve|set-dst(?:-port)?"
    r"|(?:set|del)-(?:map|acl)\(.*|add-acl\(.*|peers|resolvers|ca-file|crl-file|source|check|track|http_proxy|transparent"
)
_HAPROXY_CALLS = re.compile(
    r"(?<![\w.-])(?:env|map\w*|lua\.[\w.]+|jwt_verify|debug|hostname|ipv[46])\(|[,\[](?:lua\.|hostname)"
)


def haproxy(text: str, own: Path, guard: Guard) -> Iterator[str]:
    """Yield everything in a HAProxy configuration that must not be there."""
    for line in text.splitlines():
        words = [re.sub(r"%%(\[[^\]]*\])?", "", item.text) for item in split_line(line)]
        words = words[: words.index("--")] if "--" in words else words
        if words[0] not in _HAPROXY:
            yield line
        address = {"bind": words[1:2], "server": words[2:3]}.get(words[0], [])
        if any(not re.fullmatch(_LOOPBACK, item) for item in address):
            yield line
        if words[0] == "bind" and words[2:] not in ([], ["ssl", "crt", str(own / "stand-in.pem")]):
            yield line
        if any(map(_HAPROXY_WORDS.fullmatch, words)) or any(map(_HAPROXY_CALLS.search, _expressions(words))):
            yield line
        if str(guard.directory) in line and words[0] not in {"http-request", "http-response", "acl"}:
            yield line


def _expressions(words: list[str]) -> Iterator[str]:
    """Yield each part that may be an expression: a word, or the text in its brackets."""
    for word in words:
        yield from re.findall(r"%(?:\{[^}]*\})?(\[[^\]]*\])", word) if "%" in word else (word,)


CHECKS: dict[str, Callable[[str, Path, Guard], Iterator[str]]] = {"nginx": nginx, "haproxy": haproxy, "envoy": envoy}
"""The check of each kind of proxy."""

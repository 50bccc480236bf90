"""A configuration of nginx rewritten for loopback."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from lbctl.apply.reserved_ports import LOOPBACK
from lbctl.importer.compare.places import DEAD, StandIns
from lbctl.importer.nginx import values as nginx_values
from lbctl.importer.nginx.listeners import bind_of
from lbctl.importer.statement import Statement

_NGINX_WITHOUT = frozenset(
    {
        "user", "pid", "error_log", "access_log", "load_module", "daemon", "worker_processes", "events", "resolver",
        "stream", "mail", "ssl_trusted_certificate", "ssl_client_certificate", "ssl_verify_client", "ssl_dhparam",
        "ssl_crl", "health_check", "resolver_timeout", "env", "master_process", "working_directory",
        "worker_rlimit_nofile", "lock_file", "log_format", "proxy_store", "fastcgi_store", "uwsgi_store", "scgi_store",
        "proxy_read_timeout", "proxy_connect_timeout"
    }
)  # fmt: skip
_NGINX_PREFIXES = (
    "ssl_stapling", "proxy_ssl", "grpc_ssl", "js_", "lua_", "perl", "otel_", "opentracing", "proxy_cache_path", "dav_",
)  # fmt: skip
_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?(?![\w.])")
_IPV6 = re.compile(r"\[[0-9A-Fa-f:.]+\](?::\d+)?")
_ENVIRONMENT = re.compile(r"\$\{[A-Z][A-Z0-9_]*\}")
"""A variable of the environment, which a template is filled with before nginx reads it."""
_NETWORKS = frozenset({"allow", "deny", "set_real_ip_from", "geo", "proxy_set_header", "add_header", "return"})


def rewrite(statements: Sequence[Statement], places: StandIns) -> str:
    """Return the text of a whole configuration of nginx for loopback."""
    import crossplane

    http = [item for block in _flat(statements) if block.name == "http" for item in block.block] or list(statements)
    upstreams = {item.args[0] for item in _flat(http) if item.name == "upstream" and item.args}
    base = [
        _directive(f"{kind}_temp_path", str(places.directory / kind)) for kind in ("proxy", "client_body", "fastcgi")
    ]
    base += [_directive(f"{kind}_temp_path", str(places.directory / kind)) for kind in ("uwsgi", "scgi")]
    body = [*base, _directive("access_log", "off"), *_nginx(http, places, upstreams, ())]
    events = {"directive": "events", "line": 1, "args": [], "block": []}
    whole = [events, {"directive": "http", "line": 1, "args": [], "block": body}]
    return str(crossplane.build(whole))


def _flat(statements: Sequence[Statement]) -> Iterator[Statement]:
    for item in statements:
        if item.name == "include":
            yield from _flat(item.block)
        else:
            yield item


def _directive(name: str, *args: str) -> dict[str, Any]:
    return {"directive": name, "line": 1, "args": list(args)}


def _nginx(
    statements: Sequence[Statement], places: StandIns, upstreams: set[str], around: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    listened = False
    for item in _flat(statements):
        if left_out(item.name):
            continue
        if item.name == "server" and item.is_block and next(_named(item, "listen"), None) is None:
            item = Statement(
                item.position, item.tokens, (Statement(item.position, ("listen", "80")), *item.block), True
            )
        args = _nginx_args(item, places, upstreams, around)
        if args is None:
            continue
        directive: dict[str, Any] = {"directive": item.name, "line": 1, "args": args}
        if item.is_block:
            directive["block"] = list(_nginx(item.block, places, upstreams, (*around, item.name)))
        yield directive
        if item.name == "listen" and "ssl" in item.args and not listened:
            listened = True
            yield _directive("ssl_certificate", places.pem)
            yield _directive("ssl_certificate_key", places.pem)


def left_out(name: str) -> bool:
    """Return whether a directive would read, write or run what is not the comparison's own."""
    return (
        name in _NGINX_WITHOUT
        or name.startswith((*_NGINX_PREFIXES, "ssl_certificate"))
        or name.endswith("_temp_path")
        or "_by_lua" in name
    )


def _named(item: Statement, name: str) -> Iterator[Statement]:
    return (each for each in _flat(item.block) if each.name == name)


def _nginx_args(item: Statement, places: StandIns, upstreams: set[str], around: tuple[str, ...]) -> list[str] | None:
    """Return the arguments of a directive for loopback; None for one to leave out."""
    args = list(item.args)
    if item.name == "listen":
        port = places.binds.get(bind_of(args[0]) or "")
        kept = [word for word in args[1:] if word in {"ssl", "http2", "default_server", "default"}]
        return [f"{LOOPBACK}:{port}", *kept] if port is not None else None
    if item.name == "server" and around[-1:] == ("upstream",):
        address = nginx_values.address(args[0]) or ""
        kept = [word for word in args[1:] if word not in {"resolve"} and not word.startswith(("slow_start", "service"))]
        return [places.replica(address), *kept]
    if item.name.endswith("_pass") and args and not args[0].startswith(("http://$", "https://$", "$", "grpc://$")):
        return [_nginx_url(args[0], places, upstreams)]
    args = [_ENVIRONMENT.sub("stand-in", word) for word in args]
    if item.name in _NETWORKS:
        return args
    return [_IPV6.sub(DEAD, _IPV4.sub(lambda match: places.replica(match[0]), word)) for word in args]


def _nginx_url(url: str, places: StandIns, upstreams: set[str]) -> str:
    scheme, _, rest = url.rpartition("://")
    authority = re.split(r"[/$]", rest, maxsplit=1)[0]
    tail = rest[len(authority) :]
    plain = {"https": "http", "grpcs": "grpc"}.get(scheme, scheme or "http")
    if authority in upstreams:
        return f"{plain}://{authority}{tail}"
    port = {"https": 443, "grpcs": 443}.get(scheme, 80)
    return f"{plain}://{places.replica(nginx_values.address(authority, port) or '')}{tail}"

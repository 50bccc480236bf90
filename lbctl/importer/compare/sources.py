"""The source rewritten for loopback: what listens, what it sends requests to, and nothing that leads elsewhere.

Addresses of replicas become those of echo servers, every other address one that nobody listens on. What would talk to
the world by itself is left out: logs, resolvers, modules, filters that ask services, health checks, TLS to replicas.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from lbctl.apply.reserved_ports import LOOPBACK
from lbctl.importer.compare.places import DEAD, PATIENCE, StandIns
from lbctl.importer.haproxy import values as haproxy_values
from lbctl.importer.nginx import values as nginx_values
from lbctl.importer.nginx.listeners import bind_of
from lbctl.importer.statement import Statement

# ── nginx ────────────────────────────────────────────────────────────────────────────────────────────────────────────

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


def nginx(statements: Sequence[Statement], places: StandIns) -> str:
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


# ── HAProxy ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_HAPROXY_SECTIONS = frozenset({"defaults", "frontend", "backend", "listen", "userlist"})
_HAPROXY_WITHOUT = frozenset(
    {
        "log", "log-format", "log-format-sd", "log-tag", "errorfile", "errorfiles", "http-check", "email-alert",
        "filter", "source", "external-check", "server-state-file-name", "load-server-state-from-file", "monitor",
        "dispatch", "use-fcgi-app"
    }
)  # fmt: skip
_HAPROXY_OPTIONS = frozenset({"httpchk", "external-check", "tcp-check", "log-health-checks", "httplog", "socket-stats"})
_HAPROXY_RULES = ("lua", "set-dst", "do-resolve", "use-service", "send-spoe-group", "set-src", "normalize-uri")
_HAPROXY_SERVER = {"weight": 1, "maxconn": 1, "backup": 0, "disabled": 0, "cookie": 1}


def haproxy(statements: Sequence[Statement], places: StandIns) -> str:
    """Return the text of a configuration of HAProxy for loopback."""
    lines = ["global", "    maxconn 256"]
    for section in statements:
        if section.name not in _HAPROXY_SECTIONS or ("mode", "tcp") in {item.tokens for item in section.block}:
            continue
        if section.name == "listen" and not any(item.name == "server" for item in section.block):
            continue
        lines.append(" ".join(map(_quoted, section.tokens)))
        lines += [f"    {line}" for item in section.block for line in _haproxy(item, places)]
    return "\n".join(lines) + "\n"


def _haproxy(item: Statement, places: StandIns) -> Iterator[str]:
    if item.name in _HAPROXY_WITHOUT or (item.name == "option" and item.args[:1] and item.args[0] in _HAPROXY_OPTIONS):
        return
    if item.name in {"default-server", "stats"} or any(word.startswith(_HAPROXY_RULES) for word in item.args[:2]):
        return
    if item.name == "bind":
        yield from _binds(item, places)
    elif item.name in {"server", "server-template"}:
        yield from _server(item, places)
    else:
        yield " ".join(map(_quoted, item.tokens))


def _binds(item: Statement, places: StandIns) -> Iterator[str]:
    for bind in haproxy_values.binds(item.args[0]):
        if bind is not None and bind in places.binds:
            yield f"bind {LOOPBACK}:{places.binds[bind]}" + (f" ssl crt {places.pem}" if "ssl" in item.args else "")


def _server(item: Statement, places: StandIns) -> Iterator[str]:
    template = item.name == "server-template"
    name, rest = (f"{item.args[0]}1", item.args[2:]) if template else (item.args[0], item.args[1:])
    address = haproxy_values.server_address(rest[0]) or ""
    kept: list[str] = []
    for index, word in enumerate(rest[1:], 1):
        if word in _HAPROXY_SERVER:
            kept += rest[index : index + 1 + _HAPROXY_SERVER[word]]
    yield " ".join(["server", _quoted(name), places.replica(address), *map(_quoted, kept)])


def _quoted(word: str) -> str:
    """Return a word that HAProxy takes as it is."""
    return "'" + word.replace("'", "'\"'\"'") + "'" if not re.fullmatch(r"[A-Za-z0-9_./:%{}()!=-]+", word) else word


# ── Envoy ────────────────────────────────────────────────────────────────────────────────────────────────────────────

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


def envoy(tree: dict[str, Any], places: StandIns) -> str:
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

"""Converts an nginx configuration to a draft of a fleet."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position
from lbctl.importer import headers
from lbctl.importer.draft import Draft
from lbctl.importer.ledger import WRITTEN, Ledger
from lbctl.importer.nginx import includes, metrics, pools
from lbctl.importer.nginx import own as own_lines
from lbctl.importer.nginx.context import NginxImport, Scope, flat
from lbctl.importer.nginx.listeners import Listeners
from lbctl.importer.nginx.match import hosts_of
from lbctl.importer.nginx.routes import RoutedServer, routes
from lbctl.importer.secrets import is_credential
from lbctl.importer.statement import Statement

_FRAGMENT = "/etc/nginx/conf.d/lbctl.conf"
"""Path of the rendered file for a fleet imported from a conf.d file."""
_OWN = {
    "user": WRITTEN, "worker_processes": WRITTEN, "worker_rlimit_nofile": WRITTEN, "pid": WRITTEN,
    "error_log": WRITTEN, "daemon": WRITTEN, "load_module": "lbctl does not load modules", "sendfile": WRITTEN,
    "tcp_nopush": WRITTEN, "types": WRITTEN, "default_type": WRITTEN, "server_tokens": WRITTEN,
    "types_hash_max_size": WRITTEN, "log_format": "lbctl's access log is JSON with a fixed set of fields",
    "gzip": "lbctl does not compress responses", "stream": "lbctl balances HTTP, not TCP",
    "mail": "lbctl balances HTTP, not mail",
    "ssl_ciphers": "lbctl uses the proxy's default ciphers for `tls.min_version`",
    "ssl_session_cache": WRITTEN, "ssl_session_timeout": WRITTEN, "ssl_prefer_server_ciphers": WRITTEN,
    "ssl_dhparam": WRITTEN, "ssl_session_tickets": WRITTEN, "ssl_ecdh_curve": WRITTEN,
    "client_body_timeout": "lbctl uses nginx's default of 60 s; for gRPC calls, the route's `timeouts.idle` "
    "applies",
    "send_timeout": "the route's `timeouts.idle` applies to clients that stop reading",
    "client_body_buffer_size": WRITTEN, "large_client_header_buffers": WRITTEN, "client_header_buffer_size": WRITTEN,
    "proxy_buffers": WRITTEN, "proxy_buffer_size": WRITTEN, "proxy_busy_buffers_size": WRITTEN,
    "proxy_cache_path": "lbctl does not cache responses", "proxy_cache_bypass": "lbctl does not cache responses",
    "proxy_max_temp_file_size": "lbctl does not buffer responses", "map_hash_bucket_size": WRITTEN,
    "include": "the file was not read",
    "ssl_stapling": WRITTEN, "index": "lbctl does not serve files", "root": "lbctl does not serve files",
    "proxy_intercept_errors": "lbctl forwards error responses from replicas",
    "internal": "clients cannot request this location",
    "resolver": WRITTEN, "resolver_timeout": WRITTEN, "server_names_hash_bucket_size": WRITTEN,
}  # fmt: skip

_EVENTS = frozenset(
    {"accept_mutex", "accept_mutex_delay", "debug_connection", "multi_accept", "use", "worker_aio_requests",
     "worker_connections"}
)  # fmt: skip


def convert(statements: Sequence[Statement], file: str, diagnostics: Diagnostics, *, own: bool) -> Draft:
    """Return the draft of a fleet. If no server in the configuration forwards requests, a diagnostic is added."""
    ledger = Ledger(statements, diagnostics)
    draft = Draft(ledger, keeps_own=own)
    root = Statement(Position(file, 1, 1), ("",), tuple(statements), True)
    http = next(flat(root, "http"), root)
    context = NginxImport(draft, Scope((http, root)))
    _collect(context, http)
    includes.collect(context, http)
    servers = list(flat(http, "server"))
    if not any(_is_server(item) for item in servers):
        hint = "pass the main file, or a conf.d file with `server` and `upstream` blocks"
        diagnostics.add(
            Diagnostic("LB982", "the configuration has no `server` to import", Position(file, 1, 1), hint=hint)
        )
        return draft
    blocks = [item for item in servers if _is_server(item)]
    if http is root:
        draft.put(("proxies", "nginx"), {"kind": "nginx", "form": "fragment", "config": _FRAGMENT})
    figures = [item for item in blocks if metrics.server(context, item)]
    _servers(context, [item for item in blocks if item not in figures])
    _unused_upstreams(context, http)
    _events(context, root)
    for table in context.maps.values():
        for entry in table.block if is_credential(table.args[0]) else ():
            ledger.omit_secret(entry, "this map contains credentials")
    headers.settle(draft)
    own_lines.collect(context)
    ledger.settle(_OWN)
    return draft


def _events(context: NginxImport, root: Statement) -> None:
    """Account for `events`, and report unknown settings."""
    ledger = context.draft.ledger
    for block in flat(root, "events"):
        ledger.imply(WRITTEN, block)
        for item in flat(block):
            if item.name in _EVENTS:
                ledger.imply(WRITTEN, item)
                continue
            near = get_close_matches(item.name, sorted(_EVENTS), 1)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            ledger.omit(item, f"nginx has no such directive in `events`{meant}")
            message = f"{item.name}: nginx has no such directive in `events`, and does not start"
            ledger.advise(item, message, f"write `{near[0]}`" if near else "remove it")


def _is_server(item: Statement) -> bool:
    return item.is_block


def _collect(context: NginxImport, http: Statement) -> None:
    for item in flat(http):
        if item.name in {"map", "geo", "split_clients"} and len(item.args) > 1:
            context.maps[item.args[1]] = item
        elif item.name in {"limit_req_zone", "limit_conn_zone"}:
            zone = next((word[5:].split(":")[0] for word in item.args if word.startswith("zone=")), "")
            context.zones[zone] = item
    upgrade = [item for item in context.maps.values() if item.args[0] == "$http_upgrade"]
    for item in upgrade:
        context.draft.ledger.imply("`websocket: true` upgrades connections", item, *item.block)


def _servers(context: NginxImport, blocks: Sequence[Statement]) -> None:
    listeners = Listeners(context)
    servers = []
    for block in blocks:
        scope = context.http.inside(block)
        names = list(flat(block, "server_name"))
        hosts, others = hosts_of(names)
        paths = listeners.of(scope, hosts)
        servers.append((scope, paths, names))
        context.listeners_of[block] = paths
        if paths:
            context.draft.ledger.imply("`match.hosts` compares the Host header", *names)
        for word in others:
            reason = "`match.hosts` accepts full host names and names with a leading `*.` only"
            context.draft.ledger.omit(names[0], reason, (), part=f"server_name {word}")
    every = list(context.draft.fleet["listeners"])
    for scope, paths, names in servers:
        if not paths:
            continue
        hosts, others = hosts_of(names)
        own = tuple(str(path[1]) for path in paths)
        default = all(listeners.defaults[path] is scope for path in paths)
        if others and not default:
            message = (
                f"requests for the hosts {' '.join(others)} use the routes of another server: `match.hosts` "
                "cannot express these names"
            )
            context.draft.ledger.misroute(names[0], message)
        if not default and not hosts:
            context.draft.ledger.omit(scope.block, "another server handles all requests to this address")
            continue
        routes(context, RoutedServer(scope, () if set(own) == set(every) else own, () if default else tuple(hosts)))


def _unused_upstreams(context: NginxImport, http: Statement) -> None:
    used = {name for _, name, _ in context.addresses}
    for block in flat(http, "upstream"):
        if block.args and block.args[0] not in used:
            pools.upstream(context, block)
            reason = "no imported route sends requests to this upstream"
            context.draft.ledger.omit(block, reason, ("pools", block.args[0]))

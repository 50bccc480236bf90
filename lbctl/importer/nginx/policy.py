"""Converts a location's request settings to a route and its pools: timeouts, retries, headers and limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from lbctl.base.diagnostics import Path
from lbctl.importer import headers, provider
from lbctl.importer.nginx import external, values
from lbctl.importer.nginx.context import NginxImport, Scope, flat
from lbctl.importer.secrets import is_credential
from lbctl.importer.statement import Statement
from lbctl.importer.values import duration, is_whole
from lbctl.ir.secrets import may_hold_credential

_SHORT = 300_000
"""Idle timeouts below this value, in milliseconds, abort generations that have a long time to first token."""
_FORWARDED = "lbctl always forwards the client's address, scheme and host"
CLIENT_HOST = frozenset({"$host", "$http_host", "$host:$server_port", "$server_name"})
"""Values of the Host header that represent the client's own Host header."""
_ALWAYS = {
    "x-forwarded-for": frozenset({"$proxy_add_x_forwarded_for", "$remote_addr"}),
    "x-forwarded-proto": frozenset({"$scheme", "$http_x_forwarded_proto"}),
    "x-real-ip": frozenset({"$remote_addr"}),
    "connection": frozenset({"", "keep-alive"}),
    "x-request-id": frozenset({"$request_id"}),
}
_IMPLIED = {
    "proxy_http_version": "lbctl connects to replicas over HTTP/1.1",
    "proxy_buffering": "lbctl does not buffer responses",
    "proxy_request_buffering": "lbctl streams requests, unless a route reads the body",
    "proxy_cache": "lbctl does not cache responses",
    "chunked_transfer_encoding": "lbctl preserves chunked responses",
    "proxy_redirect": "lbctl does not change Location headers from replicas",
    "tcp_nodelay": "lbctl sends each token immediately",
}
_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")
_MEANINGS = {
    "remote_addr": headers.CLIENT, "realip_remote_addr": headers.CLIENT, "request_id": "{request_id}",
    "http_x_request_id": "{request_id}", "host": "{host}", "http_host": "{host}", "remote_user": "{tenant}",
}  # fmt: skip
"""Maps nginx's header variables to fleet variables."""
_ADDRESSES = frozenset({"x-real-ip", "x-forwarded-for", "x-client-ip", "x-forwarded-client-ip", "true-client-ip"})
_RETRY_WORDS = {"error", "timeout", "off"}


def carry(context: NginxImport, route: Path, pools: Iterable[Path], scope: Scope, prefix: str = "proxy") -> None:
    """Apply a location's effective settings to its route and pools."""
    for name, settle in _ROUTE.items():
        item = scope.last(name.replace("proxy_", f"{prefix}_"))
        if item is not None and item.args:
            settle(context, route, item)
    connect = scope.last(f"{prefix}_connect_timeout")
    for pool in pools:
        if connect is not None and connect.args and (value := values.time(connect.args[0])):
            _pool_setting(context, pool, ("timeouts", "connect"), value, connect)
    _implied(context, route, scope)
    _request_headers(context, route, scope, prefix)
    _response_headers(context, route, scope, prefix)
    _limits(context, route, scope)


def _pool_setting(context: NginxImport, pool: Path, keys: tuple[str, ...], value: object, item: Statement) -> None:
    present = context.draft.get((*pool, *keys))
    if present is None or present == value:
        context.draft.put((*pool, *keys), value, item)
    else:
        context.draft.ledger.omit(item, f"another location sets {present} for this pool", pool)


# ── Timeouts and retries ─────────────────────────────────────────────────────────────────────────────────────────────


def _idle(context: NginxImport, route: Path, item: Statement) -> None:
    written = values.milliseconds(item.args[0])
    if written is None:
        return
    context.draft.put((*route, "timeouts", "idle"), duration(written), item)
    if item.name.endswith("read_timeout") and written < _SHORT:
        message = f"{item.name} {item.args[0]} cuts off a model that takes longer to send its first token"
        hint = "increase `timeouts.idle`, or remove it to use lbctl's default of 5m"
        context.draft.ledger.advise(item, message, hint)


def _send(context: NginxImport, route: Path, item: Statement) -> None:
    context.draft.ledger.carry((*route, "timeouts", "idle"), item)


def _retry(context: NginxImport, route: Path, item: Statement) -> None:
    ledger, conditions = context.draft.ledger, set(item.args)
    if conditions == {"off"}:
        context.draft.put((*route, "retry"), {"attempts": 0}, item)
        return
    ledger.carry((*route, "retry"), item)
    # nginx repeats a POST only with `non_idempotent`, and requests to models use POST.
    busy = conditions & {"http_429", "http_503"} if "non_idempotent" in conditions else set[str]()
    if busy:
        context.draft.retry_busy(route, (int(word[5:]) for word in busy), item)
    repeated = sorted(conditions - _RETRY_WORDS - busy)
    if repeated:
        part = f"{item.name} … {' '.join(repeated)}"
        ledger.omit(item, "lbctl retries only requests that no replica has started to process", route, part=part)
    if "non_idempotent" in conditions or any(word.startswith("http_5") for word in repeated):
        message = (
            f"{part} repeats generations that have already started, and a request that crashes one replica can "
            "crash all replicas"
        )
        ledger.advise(item, message, "lbctl retries a request only if it has not reached the model")


def _tries(context: NginxImport, route: Path, item: Statement) -> None:
    if is_whole(item.args[0]) and 0 < int(item.args[0]) <= 11:
        retry = dict(context.draft.get((*route, "retry")) or {})
        context.draft.put((*route, "retry"), retry | {"attempts": int(item.args[0]) - 1}, item)


def _next_timeout(context: NginxImport, route: Path, item: Statement) -> None:
    context.draft.ledger.omit(item, "`retry.attempts` limits retries; lbctl sets their time limit itself", route)


def _http_version(context: NginxImport, route: Path, item: Statement) -> None:
    del route
    if item.args[0] == "1.0":
        message = (
            "proxy_http_version 1.0 opens a new connection for each request and does not support chunked responses"
        )
        context.draft.ledger.advise(item, message, "lbctl uses HTTP/1.1 and keeps connections to replicas open")


def _buffering(context: NginxImport, route: Path, item: Statement) -> None:
    del route
    if item.args[0] == "on":
        message = "proxy_buffering on delays tokens until a buffer is full"
        context.draft.ledger.advise(item, message, "lbctl does not buffer responses")


_ROUTE: dict[str, Callable[[NginxImport, Path, Statement], None]] = {
    "proxy_read_timeout": _idle,
    "proxy_send_timeout": _send,
    "proxy_next_upstream": _retry,
    "proxy_next_upstream_tries": _tries,
    "proxy_next_upstream_timeout": _next_timeout,
    "proxy_http_version": _http_version,
    "proxy_buffering": _buffering,
}


def _implied(context: NginxImport, route: Path, scope: Scope) -> None:
    for name, reason in _IMPLIED.items():
        if (item := scope.last(name)) is not None:
            context.draft.ledger.imply(reason, item)
    log = next(flat(scope.block, "access_log"), None)
    if log is not None and log.args == ("off",):
        context.draft.put((*route, "access_log"), "off", log)
    elif log is not None:
        context.draft.ledger.omit(log, "a listener has one access log; a route can only turn it off", route)


def advise_defaults(context: NginxImport, scope: Scope, statement: Statement, prefix: str) -> None:
    """Report nginx defaults that harm inference."""
    ledger = context.draft.ledger
    if scope.last(f"{prefix}_read_timeout") is None:
        message = "nginx's default read timeout of 60s cuts off a model that sends nothing for more than 60s"
        ledger.advise(statement, message, "lbctl's default for `timeouts.idle` is 5m")
    if prefix == "proxy" and scope.last("proxy_http_version") is None:
        message = "nginx uses HTTP/1.0 by default and opens a new connection to a replica for each request"
        ledger.advise(statement, message, "lbctl uses HTTP/1.1 and keeps connections to replicas open")
    if prefix == "proxy" and scope.last("proxy_buffering") is None:
        ledger.advise(
            statement,
            "nginx buffers responses by default, so tokens arrive in bursts",
            "lbctl does not buffer responses",
        )


# ── Headers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _advise_inheritance(context: NginxImport, scope: Scope, name: str) -> None:
    """Report headers from enclosing levels that a location drops because it sets headers itself."""
    own = list(flat(scope.block, name))
    above = [item for level in scope.levels[1:] for item in flat(level, name) if item.args]
    kept = {item.args[0].lower() for item in own if item.args}
    dropped = list(dict.fromkeys(item.args[0] for item in above if item.args[0].lower() not in kept))
    if own and dropped:
        message = (
            f"nginx ignores the `{name}` of outer blocks here, because this block sets other headers: "
            f"{', '.join(dropped)}"
        )
        context.draft.ledger.advise(own[0], message, "if they should apply, repeat them in this block")


def _request_headers(context: NginxImport, route: Path, scope: Scope, prefix: str) -> None:
    _advise_inheritance(context, scope, f"{prefix}_set_header")
    for item in scope.all(f"{prefix}_set_header"):
        if len(item.args) >= 1:
            value = item.args[1] if len(item.args) > 1 else ""
            name = item.args[0].lower()
            if not provider.owns(context.draft, route, name) and not external.is_given(scope, value):
                _request_header(context, route, item, name, value, _meanings(context, route, scope))


def _meanings(context: NginxImport, route: Path, scope: Scope) -> dict[str, str]:
    """Return the meanings of variables in a location, which are fleet variables or constants."""
    listeners = context.draft.get((*route, "listeners")) or list(context.draft.fleet["listeners"])
    bound = [context.draft.get(("listeners", name)) for name in listeners]
    constants = {
        "scheme": {"https" if "tls" in item else "http" for item in bound},
        "server_port": {str(item["bind"]).rpartition(":")[2] for item in bound},
        "server_name": {word for each in flat(scope.server.block, "server_name") for word in each.args[:1]},
    }
    return (
        _MEANINGS
        | {name: next(iter(values)) for name, values in constants.items() if len(values) == 1}
        | {name.removeprefix("$"): "{tenant}" for name, table in context.maps.items() if _gives_tenant(table)}
    )


def _gives_tenant(table: Statement) -> bool:
    """Return whether a `map` converts a key to a tenant, with an empty default."""
    if table.name != "map" or not is_credential(table.args[0]):
        return False
    given = {item.name: " ".join(item.args) for item in table.block}
    return given.pop("default", "") == "" and not set(given.values()) & {"", "0", "1"} and bool(given)


def _request_header(
    context: NginxImport, route: Path, item: Statement, name: str, value: str, meanings: dict[str, str]
) -> None:
    draft, ledger = context.draft, context.draft.ledger
    if name == "host":
        return
    if value in _ALWAYS.get(name, ()):
        ledger.imply(_FORWARDED, item)
    elif name in {"upgrade", "connection"} and "upgrade" in value.lower():
        draft.put((*route, "websocket"), True, item)
    elif value == "":
        _remove(context, route, item, name)
    elif may_hold_credential(name) and ("$" not in value or re.search(r"\$\{?[A-Z][A-Z0-9_]*\b", value)):
        secret_header(context, route, item, name)
        _remove(context, route, item, name)
    elif value == f"$http_{name.replace('-', '_')}":
        ledger.imply("lbctl forwards client headers", item)
    elif name in _ADDRESSES and (header := values.header_of(value)) is not None:
        headers.named_by(draft, route, header, item)
        if name not in _ALWAYS:
            headers.put(draft, route, name, headers.CLIENT, item)
    elif (text := headers.text(value, _VARIABLE, meanings)) is not None:
        headers.put(draft, route, name, text, item)
    else:
        ledger.omit(item, "lbctl does not support the variables in this header", route)


def _remove(context: NginxImport, route: Path, item: Statement, name: str) -> None:
    """Remove a request header so that the client's own header is not forwarded.

    This also replaces a header with a secret.
    """
    path = (*route, "headers", "request", "remove")
    context.draft.put(path, list(dict.fromkeys([*(context.draft.get(path) or []), name])), item)


def secret_header(context: NginxImport, route: Path, item: Statement, name: str) -> None:
    """Report a header whose value is a secret, and keep only its name."""
    ledger = context.draft.ledger
    ledger.secret(item, f"the value of {name} is a secret and was not copied", "keep secrets in files with mode 0600")
    ledger.omit(
        item,
        "secrets are not copied: write the header by hand or omit it",
        route,
        part=f"{item.name} {name} (a secret)",
    )


def _response_headers(context: NginxImport, route: Path, scope: Scope, prefix: str) -> None:
    _advise_inheritance(context, scope, "add_header")
    draft = context.draft
    for item in scope.all("add_header"):
        response_header(context, route, scope, item)
    for item in scope.all(f"{prefix}_hide_header"):
        removed = [*(draft.get((*route, "headers", "response", "remove")) or []), item.args[0].lower()]
        draft.put((*route, "headers", "response", "remove"), list(dict.fromkeys(removed)), item)


def response_header(context: NginxImport, route: Path, scope: Scope, item: Statement) -> None:
    """Set a response header in the same way as `add_header`."""
    ledger, text = context.draft.ledger, None
    if len(item.args) > 1:
        text = text_of(context, route, scope, item.args[1])
    if text is None:
        ledger.omit(item, "lbctl does not support the variables in this header", route)
        return
    context.draft.put((*route, "headers", "response", "set", item.args[0].lower()), text, item)
    if item.args[-1] != "always":
        ledger.imply("lbctl sets headers for all status codes", item)


def text_of(context: NginxImport, route: Path, scope: Scope, value: str) -> str | None:
    """Return a string with nginx variables replaced by fleet variables, or None if a variable has no equivalent."""
    return headers.text(value, _VARIABLE, _meanings(context, route, scope))


# ── Limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _limits(context: NginxImport, route: Path, scope: Scope) -> None:
    limits = list(context.draft.get((*route, "rate_limit")) or [])
    for item in (*scope.all("limit_req"), *scope.all("limit_conn")):
        name = next((word[5:] for word in item.args if word.startswith("zone=")), item.args[0] if item.args else "")
        zone = context.zones.get(name)
        limit = _limit(item, zone) if zone is not None else None
        if limit is None or zone is None:
            context.draft.ledger.omit(item, "`rate_limit` can limit by client, header or tenant, or in total", route)
            continue
        limits.append(limit)
        context.draft.put((*route, "rate_limit"), limits, item, zone)
        if item.name == "limit_req" and "nodelay" not in item.args and "burst" in " ".join(item.args):
            context.draft.ledger.omit(
                item, "lbctl does not delay requests: requests above the burst receive 429", route, part="no `nodelay`"
            )
    for name in ("limit_req_status", "limit_conn_status"):
        if (status := scope.last(name)) is not None:
            context.draft.ledger.imply("requests above a limit receive 429", status)


def _limit(item: Statement, zone: Statement) -> dict[str, object] | None:
    key = zone.args[0]
    by: object = "client_ip" if key in {"$binary_remote_addr", "$remote_addr"} else None
    by = "all" if key in {"$server_name", "$host", "$http_host", "1"} else by
    by = {"header": header} if (header := values.header_of(key)) and header != "host" else by
    if by is None:
        return None
    if item.name == "limit_conn":
        return {"by": by, "concurrent": int(item.args[1])} if item.args[1:] and is_whole(item.args[1]) else None
    rate = next((re.fullmatch(r"rate=(\d+)r/([sm])", word) for word in zone.args if word.startswith("rate=")), None)
    if rate is None:
        return None
    burst = next((word[6:] for word in item.args if word.startswith("burst=")), "")
    extra = {"burst": int(burst) + 1} if is_whole(burst) else {"burst": 1}
    return {"by": by, "rate": f"{rate[1]}/{rate[2]}", **extra}

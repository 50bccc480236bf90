"""An Envoy route's settings: timeouts, retries, headers, rewrites, mirrors and hashes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lbctl.base.diagnostics import Path
from lbctl.importer import headers, provider
from lbctl.importer.draft import BUSY
from lbctl.importer.envoy.clusters import pool
from lbctl.importer.envoy.context import EnvoyImport, Handler, handle
from lbctl.importer.envoy.view import EMPTY, ConfigView
from lbctl.ir.secrets import may_hold_credential

_SAFE = frozenset({"connect-failure", "refused-stream", "reset-before-request", "unavailable"})
_VARIABLE = re.compile(r"%([A-Z_]+(?:\([^)]*\))?(?::\d+)?)%|(%%)|(%)")
_MEANINGS = {
    **dict.fromkeys(
        ("DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT", "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT",
         "DOWNSTREAM_REMOTE_ADDRESS", "DOWNSTREAM_DIRECT_REMOTE_ADDRESS"), headers.CLIENT),
    **dict.fromkeys(("STREAM_ID", "REQ(X-REQUEST-ID)", "REQ(x-request-id)"), "{request_id}"),
    **dict.fromkeys(("REQ(:AUTHORITY)", "REQ(:authority)", "REQ(HOST)", "REQ(host)"), "{host}"), "%%": "%",
}  # fmt: skip
"""Maps Envoy's header variables to fleet variables."""
_ENVIRONMENT = re.compile(r"%ENVIRONMENT\(\w+\)%")
_NAMED_BY = re.compile(r"%REQ\(([A-Za-z][A-Za-z0-9_-]*)\)%")
_SCALE = {"": 1.0, "HUNDRED": 1.0, "TEN_THOUSAND": 0.01, "MILLION": 0.0001}


def carry(context: EnvoyImport, path: Path, levels: Sequence[ConfigView], view: ConfigView) -> None:
    """Convert a route's action, and the headers at all enclosing levels, to settings of the route."""
    handle(context, path, view, _HANDLERS, "cluster", "weighted_clusters", "cluster_not_found_response_code")
    if view and not view.get("timeout"):
        message = "Envoy's default timeout of 15s for a whole response cuts off longer generations"
        context.draft.ledger.advise(view.statement, message, "lbctl has no such limit unless `timeouts.request` is set")
    for level in reversed(levels):
        for side in ("request", "response"):
            _added(context, path, level.get(f"{side}_headers_to_add"), side)
            _removed(context, path, level.get(f"{side}_headers_to_remove"), side)


def credentials(levels: Sequence[ConfigView]) -> list[provider.Header]:
    """Return the headers that contain a key for the service behind a route.

    If a name is repeated, only the innermost header counts.
    """
    secrets = {}
    for level in reversed(levels):
        for item in level.get("request_headers_to_add"):
            name, value = item.get("header", "key").text.lower(), item.get("header", "value").text
            if may_hold_credential(name) and value and "%" not in _ENVIRONMENT.sub("", value):
                secrets[name] = provider.Header(name, value, item.statement)
    return list(secrets.values())


# ── Headers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _added(context: EnvoyImport, path: Path, view: ConfigView, side: str) -> None:
    for item in view:
        name, value = item.get("header", "key").text.lower(), item.get("header", "value").text
        if side == "request" and provider.owns(context.draft, path, name):
            context.put((*path, "pool"), context.draft.get((*path, "pool")), item)
        elif may_hold_credential(name) and "%" not in _ENVIRONMENT.sub("", value):
            hint = "keep secrets in files with mode 0600"
            message = f"the value of {name} is a secret and was not copied"
            context.draft.ledger.secret(item.statement, message, hint)
            reason = "secrets are not copied: write the header by hand or omit it"
            context.draft.ledger.omit(item.statement, reason, path, part=f"{name}: (a secret)")
            _remove(context, path, name, side)
        elif side == "request" and (text := headers.text(value, _VARIABLE, _MEANINGS)):
            _set(context, path, name, text, item)
        elif name in {"x-real-ip", "x-forwarded-for"} and (match := _NAMED_BY.fullmatch(value)) is not None:
            headers.named_by(context.draft, path, match[1].lower(), item.statement)
            context.imply("lbctl always forwards the client's address", item)
        elif text := headers.text(value, _VARIABLE, _MEANINGS):
            context.put((*path, "headers", side, "set", name), text, item)
        elif value:
            context.omit(item, "lbctl does not support the variables in this header", path)


def _set(context: EnvoyImport, path: Path, name: str, text: str, item: ConfigView) -> None:
    """Set a request header."""
    if (name, text) in {("x-real-ip", headers.CLIENT), ("x-request-id", "{request_id}")}:
        context.imply("lbctl always forwards the client's address and the request ID", item)
        return
    headers.put(context.draft, path, name, text, *item.all)
    if re.search(r"ADDRESS%", item.get("header", "value").text):
        context.draft.ledger.omit(item.statement, "lbctl forwards the address without its port", path)


def _removed(context: EnvoyImport, path: Path, view: ConfigView, side: str) -> None:
    for item in view:
        _remove(context, path, item.text.lower(), side, item)


def _remove(context: EnvoyImport, path: Path, name: str, side: str, *views: ConfigView) -> None:
    present = context.draft.get((*path, "headers", side, "remove")) or []
    context.put((*path, "headers", side, "remove"), list(dict.fromkeys([*present, name])), *views)


# ── The action ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _timeout(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    value = view.milliseconds
    if value == 0:
        context.imply("lbctl does not limit the duration of a request unless `timeouts.request` is set", view)
        return
    context.time((*path, "timeouts", "request"), view)
    if value is not None and value < 120_000:
        message = f"timeout {view.text} cuts off a response that takes longer, even while it streams"
        context.draft.ledger.advise(
            view.statement, message, "remove `timeouts.request`; `timeouts.idle` ends stalled responses"
        )


def _idle(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    context.time((*path, "timeouts", "idle"), view)


def _retry(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    draft, number = context.draft, view.get("num_retries").number
    conditions = [word.strip() for word in view.get("retry_on").text.split(",") if word.strip()]
    context.put((*path, "retry", "attempts"), min(1 if number is None else number, 10), view.get("num_retries"))
    statuses = {item.number: item for item in view.get("retriable_status_codes")}
    safe = set(_SAFE)
    if "retriable-status-codes" in conditions and statuses and set(statuses) <= BUSY:
        draft.retry_busy(path, [number for number in statuses if number], *view.get("retriable_status_codes").all)
        safe.add("retriable-status-codes")
    repeated = sorted(set(conditions) - safe)
    if repeated:
        context.omit(view.get("retry_on"), "lbctl retries only requests that no replica has started to process", path)
        message = f"retry_on {', '.join(repeated)} repeats generations that have already started"
        hint = "lbctl retries a request only if it has not reached the model"
        draft.ledger.advise(view.get("retry_on").statement, message, hint)
    else:
        context.imply("lbctl retries these failures by default", view.get("retry_on"))
    _attempt(context, path, view.get("per_try_timeout"))
    for name in ("retry_host_predicate", "host_selection_retry_max_attempts"):
        context.imply("each retry goes to a different replica", view.get(name))


def _attempt(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    value = view.milliseconds
    if value == 0:
        context.imply("lbctl does not limit the duration of an attempt unless `timeouts.attempt` is set", view)
    context.time((*path, "timeouts", "attempt"), view)
    if value and value < 120_000:
        message = f"per_try_timeout {view.text} cuts off a response that takes longer to start"
        context.draft.ledger.advise(view.statement, message, "remove `timeouts.attempt`, or increase it")


def _prefix(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    match = context.draft.get((*path, "match"))
    if not match.get("path_prefix"):
        context.draft.put((*path, "match", "path_prefix"), match.get("path_prefix", "/"))
    if "path" in match or "path_regex" in match:
        _closing(context, path, view)
        return
    context.put((*path, "rewrite", "path_prefix"), view.text, view)


def _closing(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    context.omit(view, "lbctl can replace only the matched prefix (`rewrite.path_prefix`)", path)
    context.draft.close(path, "the rewrite could not be converted")


def _host(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    if provider.host_of(context.draft, path) == view.text:
        context.imply("the pool sends its own Host header (`upstream.host`)", view)
        return
    context.put((*path, "rewrite", "host"), view.text, view)


def _auto_host(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    if view.text != "true":
        context.imply("this setting is off", view)
        return
    if provider.host_of(context.draft, path) is not None:
        context.imply("the pool sends its own Host header (`upstream.host`)", view)
        return
    name = str(context.draft.get((*path, "pool")) or "")
    replicas = context.draft.get(("pools", name, "replicas")) or []
    hosts = {str(item["address"]).rpartition(":")[0] for item in replicas}
    host = next(iter(hosts), "")
    if len(hosts) == 1 and re.fullmatch(r"[A-Za-z0-9.-]+", host):
        context.put((*path, "rewrite", "host"), host, view)
    else:
        context.omit(view, "a route sends the same Host header to all replicas", path)


def _mirror(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    for item in view:
        target = pool(context, context.clusters.get(item.get("cluster").text, EMPTY))
        if target is None or context.draft.get((*path, "mirror")):
            context.omit(item, "a route can have only one mirror", path)
            continue
        share = item.get("runtime_fraction", "default_value")
        percent = (share.get("numerator").number or 0) * _SCALE.get(share.get("denominator").text, 1.0)
        value = {"pool": target[1]} | ({"percent": f"{percent:g}%"} if share else {})
        context.put((*path, "mirror"), value, item)


def _hash(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    """Set the key for the pool's hash.

    In a fleet, the key belongs to the pool, while in Envoy it belongs to the route.
    """
    name = context.draft.get((*path, "pool"))
    path_of_pool = ("pools", str(name))
    if name is None or context.draft.get((*path_of_pool, "balance", "algorithm")) != "hash":
        context.omit(view, "the pool does not use a hash, or the route has several pools", path)
        return
    for item in view:
        header, cookie = item.get("header", "header_name").text, item.get("cookie", "name").text
        query = item.get("query_parameter", "name").text
        key: dict[str, object] = {"header": header.lower()} if header else {"cookie": cookie} if cookie else {}
        key = key or ({"query": query} if query else {"source_ip": {}})
        if context.draft.get((*path_of_pool, "balance", "hash")) is None:
            context.put((*path_of_pool, "balance", "hash"), {"key": key}, item)
        else:
            context.omit(item, "a pool can have only one hash key", path)


def _upgrades(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    for item in view:
        if item.get("upgrade_type").text.lower() == "websocket":
            context.put((*path, "websocket"), True, item)


_HANDLERS: dict[str, Handler] = {
    "timeout": _timeout,
    "idle_timeout": _idle,
    "retry_policy": _retry,
    "prefix_rewrite": _prefix,
    "regex_rewrite": _closing,
    "host_rewrite_literal": _host,
    "auto_host_rewrite": _auto_host,
    "request_mirror_policies": _mirror,
    "hash_policy": _hash,
    "upgrade_configs": _upgrades,
}

"""Changes to requests and responses: headers, rewrites and retries, as parts of a VirtualService rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.header_text import Variable, parts
from lbctl.ir.listeners import Listener, PathMatch
from lbctl.ir.pools import Pool
from lbctl.ir.routes import HeaderRules, Route, busy_statuses
from lbctl.ir.snapshot import View
from lbctl.targets.manifests.durations import duration
from lbctl.targets.manifests.filters import reserved
from lbctl.targets.manifests.findings import warning
from lbctl.targets.manifests.http_route import path_of
from lbctl.targets.manifests.objects import Tree

Direction = Literal["request", "response"]
_HOST = "host"
_OPERATORS: dict[Variable, str] = {
    "client_ip": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
    "request_id": "%REQ(X-REQUEST-ID)%",
    "host": "%REQ(:AUTHORITY)%",
}
"""Variables whose value depends on the request, as Envoy's command operators."""
_RETRY_ON = {
    "connect_failure": "connect-failure",
    "refused_stream": "refused-stream",
    "reset_before_request": "reset-before-request",
}
_STATUSES = (429, 503)
"""Statuses that Istio accepts in `retryOn`. Istio rejects statuses that Go's net/http does not name."""
_BACKOFF_FACTOR = 10
"""Envoy's longest pause between retries relative to the first pause, unless configured."""

# ── Headers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def headers(view: View, listener: Listener, route: Route, pools: Sequence[str]) -> Tree:
    """Return the header changes for a route's requests to `pools` and for the responses."""
    own = _change(view, listener, route, pools, "request")
    request = _tree(own, {*route.request_headers.remove, *reserved(view, route)} - own.keys())
    response = _tree(_change(view, listener, route, pools, "response"), route.response_headers.remove)
    return {**({"request": request} if request else {}), **({"response": response} if response else {})}


def response_headers(view: View, listener: Listener, route: Route, content_type: str) -> Tree:
    """Return the headers of the gateway's own response. An empty `content_type` means a response without a body."""
    known: dict[str, str | None] = {"content-type": content_type} if content_type else {}
    known |= _change(view, listener, route, (), "response")
    change = _tree(known, route.response_headers.remove)
    return {"response": change} if change else {}


def _change(
    view: View, listener: Listener, route: Route, pools: Sequence[str], direction: Direction
) -> dict[str, str | None]:
    """Return the headers to set.

    If a value contains an unknown variable, the result is None, and the header is removed.
    """
    return {
        name: None if _unknown(view, text, route, pools, direction) else _value(text, listener, route, pools)
        for name, text in _rules(route, direction).set
        if name != _HOST
    }


def _tree(values: Mapping[str, str | None], removed: Iterable[str]) -> Tree:
    known = {name: value for name, value in values.items() if value is not None}
    without = sorted({*removed, *(name for name, value in values.items() if value is None)})
    return {**({"set": known} if known else {}), **({"remove": without} if without else {})}


def _rules(route: Route, direction: Direction) -> HeaderRules:
    return route.request_headers if direction == "request" else route.response_headers


def _unknown(view: View, text: str, route: Route, pools: Sequence[str], direction: Direction) -> Variable | None:
    """Return the first variable in a value that Istio cannot replace; None if it can replace all of them."""
    is_changed = new_host(route) is not None or any(view.pools[pool].upstream for pool in pools)
    lacking: dict[Variable, bool] = {
        "tenant": True,
        "pool": len(pools) != 1,
        "host": direction == "response" and is_changed,
    }
    return next((part.variable for part in parts(text) if part.variable and lacking.get(part.variable)), None)


def _value(text: str, listener: Listener, route: Route, pools: Sequence[str]) -> str:
    """Return a value in Envoy's format, where `%` is doubled."""
    known: dict[Variable, str] = {"route": route.name, "listener": listener.name, "pool": "".join(pools), **_OPERATORS}
    return "".join(
        part.text.replace("%", "%%") if part.variable is None else known[part.variable] for part in parts(text)
    )


# ── Rewrites ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def new_host(route: Route) -> str | None:
    """Return the Host header that replicas receive; None for the client's own Host. A header rule takes precedence."""
    return dict(route.request_headers.set).get(_HOST) or (route.rewrite.host if route.rewrite else None)


def paths(path: PathMatch, route: Route) -> list[tuple[list[Tree], str | None]]:
    """Return the path conditions, as alternatives for each rule, with the rule's new path or prefix.

    In lbctl, a prefix consists of whole segments; in Istio, it need not.
    """
    replacement = route.rewrite.path_prefix if route.rewrite else None
    if path.kind != "prefix":
        return [([{path.kind: path.value}], None)]
    bare = path.value.rstrip("/")
    new = replacement.rstrip("/") if replacement is not None else None
    prefix: list[Tree] = [{"prefix": f"{bare}/"}] if bare else [{}]
    exact: list[Tree] = [{"exact": bare}] if bare else []
    if new is None:
        return [(exact + prefix, None)]
    return [*([(exact, new or "/")] if exact else []), (prefix, f"{new}/")]


# ── Retries ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def retries(view: View, route: Route, pools: Sequence[str]) -> Tree:
    """Return the retry settings for requests to `pools`.

    The settings are always written, because Istio retries by default.
    """
    retry, targets = route.retry, [view.pools[pool] for pool in pools]
    words = [_RETRY_ON[item] for item in retry.when if item in _RETRY_ON]
    if "replica_busy" in retry.when:
        words += _busy(route, targets)
    words += ["reset"] if retry.idempotent else []
    if not retry.attempts or not words:
        return {"attempts": 0}
    tree: Tree = {"attempts": retry.attempts}
    if route.attempt_timeout is not None:
        tree["perTryTimeout"] = duration(route.attempt_timeout)
    tree |= {"retryOn": ",".join(words), "backoff": duration(max(1, retry.backoff.base))}
    if any(pool.balance.key is not None or pool.affinity is not None for pool in targets):
        tree["retryIgnorePreviousHosts"] = True
    if any(len({item.priority for item in pool.replicas}) > 1 for pool in targets):
        tree["retryRemoteLocalities"] = True
    return tree


def _busy(route: Route, pools: Sequence[Pool]) -> Iterator[str]:
    """Yield the conditions for replicas that decline a request: a gRPC status, or HTTP statuses."""
    if any(pool.protocol == "grpc" for pool in pools):
        yield "unavailable"
    found = sorted({status for pool in pools for status in busy_statuses(route, pool)} & {*_STATUSES})
    if found:
        yield from ("retriable-status-codes", *map(str, found))


# ── Findings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


_INSTEAD: dict[Variable, str] = {
    "tenant": "let the component that authenticates requests set this header",
    "pool": "use {pool} only in routes to a single pool",
    "host": "use {host} only in requests, or do not change the host",
}


def diagnostics(view: View, route: Route, pools: Sequence[str]) -> Iterator[Diagnostic]:
    """Yield the settings of a route that a rule for `pools` cannot express."""
    directions: tuple[Direction, ...] = ("request", "response") if pools else ("response",)
    for direction in directions:
        for name, text in _rules(route, direction).set:
            unknown = _unknown(view, text, route, pools, direction)
            if name != _HOST and unknown is not None:
                message = f"Istio cannot set {name}, because {{{unknown}}} is not known there"
                path = (*path_of(route), "headers", direction, "set", name)
                yield warning("route.headers", message, path, _INSTEAD[unknown])
    if pools:
        yield from _retry_diagnostics(route, retries(view, route, pools)["attempts"] != 0)


def _retry_diagnostics(route: Route, is_retried: bool) -> Iterator[Diagnostic]:
    path = ("routes", route.name)
    if route.attempt_timeout is not None and not is_retried:
        message = "Istio limits a single attempt only if the request can be retried"
        yield warning("route.timeouts.attempt", message, (*path, "timeouts", "attempt"), "set retry.attempts")
    if not is_retried:
        return
    unknown = sorted(set(route.retry.busy_statuses) - {*_STATUSES})
    if "replica_busy" in route.retry.when and unknown:
        message = f"Istio does not accept the status {unknown[0]} as a reason for a retry"
        hint = "let the replicas return 503"
        yield warning("route.retry.replica_busy", message, (*path, "retry", "busy_statuses"), hint)
    backoff, factor = route.retry.backoff, _BACKOFF_FACTOR
    if backoff.max != max(1, backoff.base) * factor:
        message = f"the longest pause between retries is always {factor} times the first one"
        yield warning(
            "route.retry.backoff", message, (*path, "retry", "backoff", "max"), f"max: {factor * backoff.base}ms"
        )

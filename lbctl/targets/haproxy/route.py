"""A route's changes to requests and responses, and the proxy's own responses."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping

from lbctl.base.diagnostics import Path
from lbctl.ir.header_text import HeaderPart, Variable, may_be_empty, parts
from lbctl.ir.listeners import Listener
from lbctl.ir.routes import Forward, HeaderRules, Redirect, Respond, Route
from lbctl.ir.snapshot import View
from lbctl.targets import response_bodies
from lbctl.targets.haproxy import pool_selection, quote
from lbctl.targets.haproxy.quote import line
from lbctl.targets.token import Token

_CLASSES = {"high": -100, "low": 100}
_AMBIGUOUS = quote.error("ambiguous path", "bad_request")
_COOKIE, _SET_COOKIE = "cookie", "set-cookie"
_EXPRESSIONS: Mapping[Variable, str] = {
    "client_ip": "%[src]",
    "request_id": "%[var(txn.request_id)]",
    "tenant": "%[var(txn.tenant)]",
    "host": "%[var(txn.authority)]",
    "pool": "%[var(txn.pool)]",
}
"""Variables whose value depends on the request."""


def own_response(route: Route, action: Respond | Redirect, listener: Listener, view: View) -> Iterator[Token]:
    """Yield the lines with which the proxy itself responds to requests on this route."""
    if_route, path = f"if {acl(route)}", ("routes", route.name, "respond")
    if isinstance(action, Redirect):
        location = "location 'https://%[req.hdr(host),host_only]%[pathq]'"
        yield line(f"http-request redirect {location} code 301", if_route, "{ method GET HEAD }", source=path)
        yield line(f"http-request redirect {location} code 308", if_route, source=path)
        return
    content: tuple[str | Token, ...] = ()
    body = response_bodies.body_of(action, listener, view)
    if body:
        content = ("content-type", quote.word(action.content_type), "string", quote.text(body, path))
    yield line(f"http-request return status {action.status}", *content, if_route, source=path)


def request_changes(route: Route, listener: Listener, view: View, *, upgrades: bool) -> Iterator[Token]:
    """Yield the lines that change a request on this route before it is forwarded.

    `upgrades`: the listener has not yet removed the headers that request another protocol.
    """
    if_route = f"if {acl(route)}"
    yield from _rewrite_lines(route, listener, if_route)
    if route.queue_priority in _CLASSES:
        priority = f"http-request set-priority-class int({_CLASSES[route.queue_priority]})"
        yield line(priority, if_route, source=("routes", route.name, "queue_priority"))
    not_websocket = "!{ req.fhdr(upgrade) -m str -i websocket }" if route.websocket else ""
    if upgrades:
        yield line("http-request del-header upgrade", if_route, not_websocket)
        yield line("http-request del-header connection", if_route)
    if route.websocket:
        for name, value in (("upgrade", "websocket"), ("connection", "upgrade")):
            yield line(f"http-request set-header {name} {value}", if_route, not_websocket.removeprefix("!"))
        yield line("http-request set-var(txn.upgraded) bool(true)", if_route, not_websocket.removeprefix("!"))
    path = ("routes", route.name, "headers", "request")
    kept = list(_affinity_cookies(route, view))
    for cookie, served, source in kept:
        fetch = quote.word(quote.sample("req.cook", cookie))
        yield line("http-request set-var(txn.affinity)", fetch, if_route, served, source=source)
    for header in route.request_headers.remove:
        yield line("http-request del-header", quote.word(header), if_route, source=(*path, "remove"))
    yield from _header_lines("http-request", route, listener, route.request_headers, if_route, (*path, "set"))
    for cookie, served, source in kept:
        pair = quote.word(f"{cookie.replace('%', '%%')}=%[var(txn.affinity)]")
        found = "{ var(txn.affinity) -m found }"
        yield line(f"http-request add-header {_COOKIE}", pair, if_route, served, found, source=source)


def _affinity_cookies(route: Route, view: View) -> Iterator[tuple[str, str, Path]]:
    """Yield name, pool condition and source of each affinity cookie that the route's rules would remove.

    HAProxy reads such a cookie in the backend, and removes it before it forwards the request.
    """
    if isinstance(route.action, Forward) and _COOKIE in _names(route.request_headers):
        for name in route.action.pools:
            affinity = view.pools[name].affinity
            if affinity is not None:
                served = f"{{ var(txn.pool) -m str -- {quote.name(name).text} }}"
                yield affinity.cookie, served, ("pools", name, "affinity")


def response_changes(route: Route, listener: Listener, view: View) -> Iterator[Token]:
    """Yield the lines that change the responses of this route.

    The changes also apply to the proxy's own responses. Changes to the replica's cookies come before HAProxy adds its
    own cookies.
    """
    if isinstance(route.action, Forward):
        yield from pool_selection.cookies(route, route.action, secure=listener.tls is not None)
    if_route = f"if {{ var(txn.route) -m str -- {quote.name(route.name).text} }}"
    path, rules = ("routes", route.name, "headers", "response"), route.response_headers
    beside_own = {_SET_COOKIE} & _names(rules) if _gives_cookies(route, view) else set()
    for header in sorted(beside_own):
        yield line("http-response del-header", quote.word(header), if_route, source=path)
    for header in rules.remove:
        if header not in beside_own:
            yield line("http-after-response del-header", quote.word(header), if_route, source=(*path, "remove"))
    yield from _header_lines("http-after-response", route, listener, rules, if_route, (*path, "set"), added=beside_own)


def _header_lines(
    action: str,
    route: Route,
    listener: Listener,
    rules: HeaderRules,
    condition: str,
    source: Path,
    added: Container[str] = (),
) -> Iterator[Token]:
    """Yield the lines that set the headers of these rules by `action` (http-request, http-after-response).

    A header in `added` does not replace existing headers with the same name.
    """
    for name, text in rules.set:
        value = quote.word("".join(_written(part, route, listener) for part in parts(text)))
        has_tenant = ""
        if may_be_empty(text):
            if name not in added:
                yield line(f"{action} del-header", quote.word(name), condition, source=source)
            has_tenant = "{ var(txn.tenant) -m len gt 0 }"
        verb = "add-header" if name in added else "set-header"
        yield line(f"{action} {verb}", quote.word(name), value, condition, has_tenant, source=source)


def _written(part: HeaderPart, route: Route, listener: Listener) -> str:
    constants = {"listener": listener.name, "route": route.name}
    if part.variable is None:
        return part.text.replace("%", "%%")
    return _EXPRESSIONS.get(part.variable) or quote.name(constants[part.variable]).text


def _gives_cookies(route: Route, view: View) -> bool:
    """Return whether HAProxy sets affinity or variant cookies for the route's clients."""
    action = route.action
    if not isinstance(action, Forward):
        return False
    by_variant = action.sticky is not None and action.sticky.kind == "cookie"
    return by_variant or any(view.pools[name].affinity for name in action.pools)


def _names(rules: HeaderRules) -> set[str]:
    return {*rules.remove, *(name for name, _ in rules.set)}


def acl(route: Route) -> str:
    """Return the ACL that is true for requests on this route."""
    return f"route_{quote.name(route.name).text}"


def _rewrite_lines(route: Route, listener: Listener, if_route: str) -> Iterator[Token]:
    if route.rewrite is None:
        return
    path = ("routes", route.name, "rewrite")
    if route.rewrite.path_prefix is not None:
        yield from _prefix(route, route.rewrite.path_prefix, listener, if_route)
    if route.rewrite.host is not None:
        yield line(
            "http-request set-header host", quote.formatted(route.rewrite.host), if_route, source=(*path, "host")
        )


def _prefix(route: Route, replacement: str, listener: Listener, if_route: str) -> Iterator[Token]:
    """Yield the lines that replace the prefix of the path.

    The prefix must match the path as the client wrote it. A path that matches only when decoded is rejected.
    """
    path = ("routes", route.name, "rewrite", "path_prefix")
    prefixes = {rule.path.value for rule in listener.rules if rule.route == route.name and rule.path.kind == "prefix"}
    for prefix in sorted(prefixes):
        start = re.escape(prefix.rstrip("/"))
        pattern = f"^{start}(/.*)?$" if start else "^(/.*)$"
        without_raw_prefix = line("!{ path -m reg --", quote.word(pattern), "}")
        yield line(f"http-request return status 400 {_AMBIGUOUS}", if_route, without_raw_prefix, source=path)
        new = re.sub(r"\\", r"\\\\", replacement.rstrip("/")).replace("%", "%%")
        search, new = (pattern, rf"{new}\1") if new else (f"^{start}/?(.*)$", r"/\1")
        yield line("http-request replace-path", quote.word(search), quote.word(new), if_route, source=path)

"""What a route changes in a request and its response, and the responses that the proxy gives by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lbctl.ir.listeners import Listener
from lbctl.ir.routes import Forward, Redirect, Respond, Route
from lbctl.targets.haproxy import choice, header_text, quote
from lbctl.targets.haproxy.quote import line
from lbctl.targets.token import Token

_CLASSES = {"high": -100, "low": 100}
_AMBIGUOUS = quote.error("ambiguous path", "bad_request")


def own_response(route: Route, action: Respond | Redirect) -> Iterator[Token]:
    """Yield the lines by which the proxy answers a request of this route by itself."""
    if_route, path = f"if {acl(route)}", ("routes", route.name, "respond")
    if isinstance(action, Redirect):
        location = "location 'https://%[req.hdr(host),host_only]%[pathq]'"
        yield line(f"http-request redirect {location} code 301", if_route, "{ method GET HEAD }", source=path)
        yield line(f"http-request redirect {location} code 308", if_route, source=path)
        return
    content: tuple[str | Token, ...] = ()
    if action.body:
        content = ("content-type", quote.word(action.content_type), "string", quote.text(action.body, path))
    yield line(f"http-request return status {action.status}", *content, if_route, source=path)


def request_changes(route: Route, listener: Listener, *, upgrades: bool) -> Iterator[Token]:
    """Yield the lines that change a request of this route before it is forwarded.

    `upgrades` is whether the listener has not yet removed what asks for another protocol.
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
    path = ("routes", route.name, "headers", "request")
    for header in route.request_headers.remove:
        yield line("http-request del-header", quote.word(header), if_route, source=(*path, "remove"))
    yield from header_text.lines("http-request", route, listener, route.request_headers, if_route, (*path, "set"))


def response_changes(route: Route, listener: Listener) -> Iterator[Token]:
    """Yield the lines that change the responses of this route."""
    if isinstance(route.action, Forward):
        yield from choice.cookies(route, route.action, secure=listener.tls is not None)
    if_route = f"if {{ var(txn.route) -m str -- {quote.name(route.name).text} }}"
    path = ("routes", route.name, "headers", "response")
    for header in route.response_headers.remove:
        yield line("http-after-response del-header", quote.word(header), if_route, source=(*path, "remove"))
    yield from header_text.lines(
        "http-after-response", route, listener, route.response_headers, if_route, (*path, "set")
    )


def acl(route: Route) -> str:
    """Return the ACL that holds for requests of this route."""
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

    The prefix is looked for in the path as the client wrote it; a path that has it only when decoded is refused.
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

"""What a route does to a request and its answer: what is rewritten, what the proxy says by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lbctl.ir.listeners import Listener
from lbctl.ir.routes import Forward, Redirect, Respond, Route
from lbctl.targets.haproxy import choice, quote
from lbctl.targets.haproxy.quote import line
from lbctl.targets.token import Token

_CLASSES = {"high": -100, "low": 100}
_AMBIGUOUS = quote.error("ambiguous path", "bad_request")


def answered(route: Route, action: Respond | Redirect) -> Iterator[Token]:
    here, path = f"if {acl(route)}", ("routes", route.name, "respond")
    if isinstance(action, Redirect):
        location = "location 'https://%[req.hdr(host),host_only]%[pathq]'"
        yield line(f"http-request redirect {location} code 301", here, "{ method GET HEAD }", source=path)
        yield line(f"http-request redirect {location} code 308", here, source=path)
        return
    content: tuple[str | Token, ...] = ()
    if action.body:
        content = ("content-type", quote.word(action.content_type), "string", quote.text(action.body, path))
    yield line(f"http-request return status {action.status}", *content, here, source=path)


def changed(route: Route, listener: Listener) -> Iterator[Token]:
    here = f"if {acl(route)}"
    yield from _rewritten(route, listener, here)
    if route.queue_priority in _CLASSES:
        priority = f"http-request set-priority-class int({_CLASSES[route.queue_priority]})"
        yield line(priority, here, source=("routes", route.name, "queue_priority"))
    kept = "!{ req.fhdr(upgrade) -m str -i websocket }" if route.websocket else ""
    yield line("http-request del-header upgrade", here, kept)
    yield line("http-request del-header connection", here)
    if route.websocket:
        for name, value in (("upgrade", "websocket"), ("connection", "upgrade")):
            yield line(f"http-request set-header {name} {value}", here, kept.removeprefix("!"))
    path = ("routes", route.name, "headers", "request")
    for header in route.request_headers.remove:
        yield line("http-request del-header", quote.word(header), here, source=(*path, "remove"))
    for header, value in route.request_headers.set:
        yield line("http-request set-header", quote.word(header), quote.formatted(value), here, source=(*path, "set"))


def answers(route: Route, listener: Listener) -> Iterator[Token]:
    """On the way back."""
    if isinstance(route.action, Forward):
        yield from choice.cookies(route, route.action, secure=listener.tls is not None)
    here = f"if {{ var(txn.route) -m str -- {quote.name(route.name).text} }}"
    path = ("routes", route.name, "headers", "response")
    for header in route.response_headers.remove:
        yield line("http-after-response del-header", quote.word(header), here, source=(*path, "remove"))
    for header, value in route.response_headers.set:
        written = (quote.word(header), quote.formatted(value))
        yield line("http-after-response set-header", *written, here, source=(*path, "set"))


def acl(route: Route) -> str:
    return f"route_{quote.name(route.name).text}"


def _rewritten(route: Route, listener: Listener, here: str) -> Iterator[Token]:
    if route.rewrite is None:
        return
    path = ("routes", route.name, "rewrite")
    if route.rewrite.path_prefix is not None:
        yield from _prefix(route, route.rewrite.path_prefix, listener, here)
    if route.rewrite.host is not None:
        yield line("http-request set-header host", quote.formatted(route.rewrite.host), here, source=(*path, "host"))


def _prefix(route: Route, wanted: str, listener: Listener, here: str) -> Iterator[Token]:
    """The prefix is looked for in the path as the client wrote it; one that is only there when decoded is refused."""
    path = ("routes", route.name, "rewrite", "path_prefix")
    prefixes = {rule.path.value for rule in listener.rules if rule.route == route.name and rule.path.kind == "prefix"}
    for prefix in sorted(prefixes):
        start = re.escape(prefix.rstrip("/"))
        pattern = f"^{start}(/.*)?$" if start else "^(/.*)$"
        raw = line("!{ path -m reg --", quote.word(pattern), "}")
        yield line(f"http-request return status 400 {_AMBIGUOUS}", here, raw, source=path)
        new = re.sub(r"\\", r"\\\\", wanted.rstrip("/")).replace("%", "%%")
        old, new = (pattern, rf"{new}\1") if new else (f"^{start}/?(.*)$", r"/\1")
        yield line("http-request replace-path", quote.word(old), quote.word(new), here, source=path)

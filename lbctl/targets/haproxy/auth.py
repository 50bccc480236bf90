"""Who may pass: API keys, tokens, or either. Nobody passes unless something of the request proves it.

Keys stand as hashes in a file of their own; what a client presents is hashed before it is looked up. What proves a
client does not reach a replica unless the fleet says so, and nothing of it is logged but the tenant.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.routes import ApiKeys, Auth, Forward, Route
from lbctl.ir.secrets import ApiKey
from lbctl.ir.snapshot import View
from lbctl.targets.haproxy import jwt, quote
from lbctl.targets.haproxy.match import Acls
from lbctl.targets.haproxy.quote import line
from lbctl.targets.target import File
from lbctl.targets.token import Token

_DENIED = quote.error("no valid credentials", "unauthorized")
_NO_LENGTH = quote.error("send a content-length", "no_length")
_NOBODY = quote.error("the credentials name no tenant", "forbidden")

_BODY_STARTS = "10s"
"""Within this time a request of HTTP/2 without a length ends or its body begins."""


def files(view: View) -> Iterator[File]:
    """What the lines of all routes read."""
    for route in view.routes.values():
        if route.auth and route.auth.api_keys:
            yield File(_map(route), _hashed(view.api_keys[route.name]), secret=True)
        yield from jwt.files(route, view)


def diagnostics(view: View) -> Iterator[Diagnostic]:
    for route in view.routes.values():
        yield from jwt.diagnostics(route, view)


def lines(route: Route, view: View, acls: Acls) -> Iterator[Token]:
    """Sets txn.tenant where there is one; else answers 401 or 403, or lets a token of no tenant pass."""
    auth = route.auth
    if auth is None:
        return
    here, path = f"if route_{quote.name(route.name).text}", ("routes", route.name, "auth")
    if auth.api_keys:
        yield from _api_keys(route, auth.api_keys, here)
    if auth.jwt:
        yield from jwt.lines(route, auth.jwt, view, acls, here)
    denied = f"http-request return status 401 {_DENIED} hdr www-authenticate Bearer"
    unknown = "!{ var(txn.tenant) -m found }"
    yield line(denied, here, unknown, "!{ var(txn.issued) -m found }" if auth.jwt else "", source=path)
    if any(limit.by == "tenant" for limit in route.rate_limits):
        yield line(f"http-request return status 403 {_NOBODY}", here, unknown, source=path)
    yield from _passed_on(auth, here, path)
    yield from _without_trailers(route, auth, view, here)


def _api_keys(route: Route, keys: ApiKeys, here: str) -> Iterator[Token]:
    path = ("routes", route.name, "auth", "api_keys")
    presented = quote.sample("req.fhdr", keys.header, 'regsub("^[Bb]earer +","")', "sha2(256),hex,lower")
    found = quote.word(f'{presented},map_str("{_map(route)}")')
    yield line("http-request set-var(txn.tenant)", found, here, source=path)


def _passed_on(auth: Auth, here: str, path: tuple[str, ...]) -> Iterator[Token]:
    known = "{ var(txn.tenant) -m found }"
    yield line("http-request set-var-fmt(txn.tenant_json)", Token("'\"%[var(txn.tenant),json(utf8s)]\"'"), here, known)
    if auth.forward_tenant:
        header = quote.word(auth.forward_tenant)
        yield line("http-request del-header", header, here, source=path)
        yield line("http-request set-header", header, "'%[var(txn.tenant)]'", here, known)


def _without_trailers(route: Route, auth: Auth, view: View, here: str) -> Iterator[Token]:
    """Servers that read trailers as headers would take the tenant from one. HAProxy cannot remove trailers; it forwards
    none of a message with a length. HTTP/2 tells only at the end of a message whether it has a body."""
    if not auth.forward_tenant or not isinstance(route.action, Forward):
        return
    if all(view.pools[name].protocol != "http1" for name in route.action.pools):
        return
    path = ("routes", route.name, "auth", "forward_tenant")
    unknown = f"{here} !{{ req.hdr(content-length) -m found }}"
    h2 = f"{unknown} {{ req.ver -m beg 2 }}" + (" !{ req.hdr(upgrade) -m found }" if route.websocket else "")
    refuse = f"http-request return status 411 {_NO_LENGTH}"
    yield line(refuse, unknown, "{ req.hdr(transfer-encoding) -m found }", source=path)
    yield line(f"http-request wait-for-body time {_BODY_STARTS} at-least 1", h2, source=path)
    yield line(refuse, h2, "{ req.body_size gt 0 }", source=path)
    yield line("http-request set-header content-length 0", h2, source=path)


def kept_back(route: Route) -> Iterator[Token]:
    """The credentials, taken off when limits and pins have seen them."""
    auth = route.auth
    if auth is not None and not auth.forward_credentials:
        here, path = f"if route_{quote.name(route.name).text}", ("routes", route.name, "auth")
        presented = {auth.api_keys.header} if auth.api_keys else set()
        for name in sorted(presented | ({"authorization"} if auth.jwt else set())):
            yield line("http-request del-header", quote.word(name), here, source=path)


def _hashed(keys: Sequence[ApiKey]) -> str:
    """SHA-256 in hex, and the tenant; one key a line."""
    found = {key.sha256 or hashlib.sha256(key.key.encode()).hexdigest(): key.tenant for key in keys}
    return "".join(f"{digest} {quote.name(found[digest]).text}\n" for digest in sorted(found))


def _map(route: Route) -> str:
    return f"haproxy-api-keys-{quote.name(route.name).text}.map"

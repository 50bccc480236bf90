"""Authentication by API keys, tokens, or either of them. Requests without valid credentials are rejected.

Keys are stored as hashes in a separate file; a client's key is hashed before it is looked up. Credentials are not sent
to replicas unless the fleet forwards them, and only the tenant is logged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.header_text import variables
from lbctl.ir.routes import ApiKeys, Auth, Forward, Route
from lbctl.ir.secrets import ApiKey
from lbctl.ir.snapshot import View
from lbctl.targets import websocket_key
from lbctl.targets.client_identity import challenge
from lbctl.targets.haproxy import jwt, quote, sections
from lbctl.targets.haproxy.match import Acls
from lbctl.targets.haproxy.quote import line
from lbctl.targets.target import File
from lbctl.targets.token import Token

_DENIED = quote.error("no valid credentials", "unauthorized")
_NO_LENGTH = quote.error("send a content-length", "no_length")
_NOBODY = quote.error("the credentials do not identify a tenant", "forbidden")

_WITH_KEY = f"^{websocket_key.BEFORE}({websocket_key.KEY}){websocket_key.BEHIND}"
_MAX_PROTOCOL_LINES = 4
"""Maximum number of subprotocol lines that are read. Browsers send one."""
_HAS_PROTOCOLS = f"{{ req.fhdr({websocket_key.HEADER}) -m found }}"
_ALL_PROTOCOLS = Token(
    "'" + ",".join(f"%[req.fhdr({websocket_key.HEADER},{n + 1})]" for n in range(_MAX_PROTOCOL_LINES)) + "'"
)
_UPGRADES = "{ req.fhdr(upgrade) -m str -i websocket }"
_BODY_STARTS = "10s"
"""Timeout within which an HTTP/2 request without a length must either end or start its body."""


def files(view: View) -> Iterator[File]:
    """Yield the key files of all routes."""
    for route in view.routes.values():
        if route.auth and route.auth.api_keys:
            yield File(_map_file(route), _hashed_keys(view.api_keys[route.name]), secret=True)
        yield from jwt.files(route, view)


def diagnostics(view: View) -> Iterator[Diagnostic]:
    """Yield the warnings about keys that HAProxy cannot use, for all routes."""
    for route in view.routes.values():
        yield from jwt.diagnostics(route, view)


def lines(route: Route, view: View, acls: Acls) -> Iterator[Token]:
    """Yield the lines that authenticate a request of `route`.

    The lines set txn.tenant if the credentials identify a tenant. Other requests are rejected with 401 or 403, unless a
    valid token without a tenant is sufficient.
    """
    auth = route.auth
    if auth is None:
        return
    if_route, path = f"if route_{quote.name(route.name).text}", ("routes", route.name, "auth")
    if auth.api_keys:
        yield from _api_keys(route, auth.api_keys, if_route, view)
    if auth.jwt:
        yield from jwt.lines(route, auth.jwt, view, acls, if_route)
    value = quote.formatted(challenge(auth)).text
    denied = f"http-request return status 401 {_DENIED} hdr www-authenticate {value}"
    without_tenant = "!{ var(txn.tenant) -m found }"
    yield line(denied, if_route, without_tenant, "!{ var(txn.issued) -m found }" if auth.jwt else "", source=path)
    if route.limits_by_tenant:
        yield line(f"http-request return status 403 {_NOBODY}", if_route, without_tenant, source=path)
    yield from _forwarded_tenant(auth, if_route, path)
    yield from _without_trailers(route, auth, view, if_route)


def _api_keys(route: Route, keys: ApiKeys, if_route: str, view: View) -> Iterator[Token]:
    path = ("routes", route.name, "auth", "api_keys")
    prefix = "^[Bb]earer +" if keys.realm is None else "^[Bb][Aa][Ss][Ii][Cc] +"
    bare = f'regsub("{prefix}","")'
    tenant = f'sha2(256),hex,lower,map_str("{sections.beside(_map_file(route), view.proxy)}")'
    if len(keys.headers) == 1 and not keys.websocket_protocol:
        has_scheme = "" if keys.realm is None else f"{{ req.fhdr(authorization) -m reg -- '{prefix}' }}"
        presented = quote.word(quote.sample("req.fhdr", keys.headers[0], bare, tenant))
        yield line("http-request set-var(txn.tenant)", presented, if_route, has_scheme, source=path)
        return
    no_key = ""
    for name in keys.headers:
        fetch = quote.word(quote.sample("req.fhdr", name, bare))
        is_sent = line("{", quote.word(quote.sample("req.fhdr", name)), "-m len gt 0 }")
        yield line("http-request set-var(txn.key)", fetch, if_route, is_sent, no_key, source=path)
        no_key = "!{ var(txn.key) -m found }"
    if keys.websocket_protocol:
        key = quote.word(rf'var(txn.protocols),regsub("{_WITH_KEY}","\\1","i")')
        has_key = f"{{ var(txn.protocols) -m reg -i -- '{_WITH_KEY}' }}"
        yield line("http-request set-var-fmt(txn.protocols)", _ALL_PROTOCOLS, if_route, _HAS_PROTOCOLS, source=path)
        yield line("http-request set-var(txn.key)", key, if_route, _UPGRADES, has_key, no_key, source=path)
    yield line("http-request set-var(txn.tenant)", quote.word(f"var(txn.key),{tenant}"), if_route, source=path)
    yield line("http-request unset-var(txn.key)", if_route, source=path)


def _forwarded_tenant(auth: Auth, if_route: str, path: tuple[str, ...]) -> Iterator[Token]:
    has_tenant = "{ var(txn.tenant) -m found }"
    yield line(
        "http-request set-var-fmt(txn.tenant_json)", Token("'\"%[var(txn.tenant),json(utf8s)]\"'"), if_route, has_tenant
    )
    if auth.forward_tenant:
        header = quote.word(auth.forward_tenant)
        yield line("http-request del-header", header, if_route, source=path)
        yield line("http-request set-header", header, "'%[var(txn.tenant)]'", if_route, has_tenant)


def _without_trailers(route: Route, auth: Auth, view: View, if_route: str) -> Iterator[Token]:
    """Yield the lines that remove trailers from requests whose tenant is forwarded to HTTP/1 replicas.

    A server that treats trailers as headers would accept a tenant from them. HAProxy cannot remove trailers, but it
    does not forward them if the message has a length. An HTTP/2 message without a length passes only if it ends with
    its headers. This is visible only in HAProxy's internal representation (HTX). As of version 3.0, setting a
    Content-Length here does not suppress trailers.
    """
    named = auth.forward_tenant or any("tenant" in variables(text) for _, text in route.request_headers.set)
    if not named or not isinstance(route.action, Forward):
        return
    if all(view.pools[name].protocol != "http1" for name in route.action.pools):
        return
    path = ("routes", route.name, "auth", "forward_tenant")
    without_length = f"{if_route} !{{ req.hdr(content-length) -m found }}"
    h2 = f"{without_length} {{ req.ver -m beg 2 }}" + (" !{ req.hdr(upgrade) -m found }" if route.websocket else "")
    refuse = f"http-request return status 411 {_NO_LENGTH}"
    yield line(refuse, without_length, "{ req.hdr(transfer-encoding) -m found }", source=path)
    yield line(f"http-request wait-for-body time {_BODY_STARTS} at-least 1", h2, source=path)
    yield line(refuse, h2, "!{ internal.htx.has_eom }", source=path)
    yield line(refuse, h2, "!{ internal.htx_blk.type(tail) -m str HTX_BLK_EOH }", source=path)


def credential_removal(route: Route) -> Iterator[Token]:
    """Yield the lines that remove the credentials, after limits and pins have read them."""
    auth = route.auth
    if auth is not None and not auth.forward_credentials:
        if_route, path = f"if route_{quote.name(route.name).text}", ("routes", route.name, "auth")
        if auth.api_keys and auth.api_keys.websocket_protocol:
            yield from _without_key_in_protocols(if_route, path)
        presented = set(auth.api_keys.headers if auth.api_keys else ())
        for name in sorted(presented | ({"authorization"} if auth.jwt else set())):
            yield line("http-request del-header", quote.word(name), if_route, source=path)


def _without_key_in_protocols(if_route: str, path: tuple[str, ...]) -> Iterator[Token]:
    """Yield the lines that remove keys from a WebSocket's subprotocols.

    If the last item is removed, so is the header.
    """
    key = f'regsub("(^|,)[[:space:]]*{websocket_key.ITEM}[.][^,]*","","gi")'
    ends = 'regsub("^[[:space:],]+",""),regsub("[[:space:],]+$","")'
    others = quote.word(f"var(txn.protocols),{key},{ends}")
    yield line("http-request set-var(txn.protocols)", others, if_route, _HAS_PROTOCOLS, source=path)
    is_changed = f"{{ req.fhdr({websocket_key.HEADER}) -m sub -i -- {websocket_key.ITEM}. }}"
    yield line(f"http-request del-header {websocket_key.HEADER}", if_route, is_changed, source=path)
    is_left = f"{{ var(txn.protocols) -m len gt 0 }} !{{ req.fhdr({websocket_key.HEADER}) -m found }}"
    yield line(f"http-request set-header {websocket_key.HEADER} %[var(txn.protocols)]", if_route, is_left, source=path)


def _hashed_keys(keys: Sequence[ApiKey]) -> str:
    """Return the map file, with one line per key: its SHA-256 in hexadecimal and its tenant."""
    tenants = {key.sha256 or hashlib.sha256(key.key.encode()).hexdigest(): key.tenant for key in keys}
    return "".join(f"{digest} {quote.name(tenants[digest]).text}\n" for digest in sorted(tenants))


def _map_file(route: Route) -> str:
    return f"haproxy-api-keys-{quote.name(route.name).text}.map"

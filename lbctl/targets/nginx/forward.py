"""How a request goes on to a pool: address, headers, timeouts, tries, TLS; by nginx's proxy or its gRPC module."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote as percent

from lbctl.ir.listeners import Rule
from lbctl.ir.pools import Pool
from lbctl.ir.routes import Route
from lbctl.targets.client_headers import HOP_BY_HOP, INTERNAL
from lbctl.targets.nginx import auth, quote
from lbctl.targets.nginx.blocks import Forwarding, Tls, Upstream
from lbctl.targets.nginx.render_context import RenderContext
from lbctl.targets.token import Token

FOREVER = 24 * 86_400_000
"""Milliseconds: nginx keeps times in 31 bits."""
_SPEAKS_HTTP2 = (1, 29, 4)
_NOT_PASSED = frozenset({"date", "server", "x-pad"})
"""Response headers that nginx never takes over from a replica: it writes its own."""


@dataclass(frozen=True, slots=True)
class Inlet:
    """What a listener gives to its requests: the names of its variables, and whether it tells peers apart."""

    number: int
    request_id_header: str
    request_id: str
    forwarded_for: str
    forwarded_proto: str
    told: tuple[str, ...]
    """The headers that only a trusted peer may send, but for x-forwarded-for and -proto."""
    trusted: str | None
    """The variable that is 1 for a peer that may say who the client is; None: nobody is told apart."""


def forwarding(
    book: RenderContext, inlet: Inlet, route: Route, rule: Rule, pool: Pool, upstream: Upstream, copy: bool = False
) -> Forwarding | None:
    """None where the replicas' certificates cannot be verified as asked: then nothing may go there."""
    tls = _tls(book, pool)
    if pool.tls is not None and tls is None:
        return None
    grpc = pool.protocol == "grpc"
    path = _rewritten(book, inlet, route, rule)
    attempts = 0 if copy or "connect_failure" not in route.retry.when else route.retry.attempts
    idle = min(item or FOREVER for item in (route.idle_timeout, route.request_timeout))
    return Forwarding(
        module=Token("grpc" if grpc else "proxy"),
        url=_url(pool, upstream, path or ("$request_uri" if copy else "")),
        path=Token(path) if path and not copy else None,
        http_version=None if grpc else Token(_http_version(book, pool)),
        request_headers=_request_headers(book, inlet, route, grpc),
        hide=_hidden(book, inlet, route),
        connect=pool.connect_timeout,
        idle=min(idle, 30_000) if copy else idle,
        tries=attempts + 1,
        next_timeout=0 if route.retry.idempotent else (attempts + 1) * pool.connect_timeout + 1_000,
        conditions=_conditions(route, attempts),
        tls=tls,
        on_502=Token("@$lb_on_502"),
        on_504=Token("@$lb_on_504"),
    )


def _http_version(book: RenderContext, pool: Pool) -> str:
    return "2" if pool.protocol == "http2" and book.version >= _SPEAKS_HTTP2 else "1.1"


def _conditions(route: Route, attempts: int) -> Token:
    if attempts == 0:
        return Token("off")
    return Token("error timeout non_idempotent" if route.retry.idempotent else "error timeout")


def _url(pool: Pool, upstream: Upstream, path: str) -> Token:
    scheme = "grpc" if pool.protocol == "grpc" else "http"
    return Token(f"{scheme}{'s' if pool.tls else ''}://{upstream.name.text}{path}")


def _rewritten(book: RenderContext, inlet: Inlet, route: Route, rule: Rule) -> str:
    """ "" where the path stays."""
    if route.rewrite is None or route.rewrite.path_prefix is None or rule.path.kind == "regex":
        return ""
    return _new_path(book, inlet, route, rule, route.rewrite.path_prefix)


def _new_path(book: RenderContext, inlet: Inlet, route: Route, rule: Rule, prefix: str) -> str:
    """The variable with the new path and the query, both as the client wrote them; empty where the client wrote the
    prefix in another way than it is known (`/a%3Ab/` for `/a:b/`), and nginx cannot tell what to replace."""
    variable = f"$lb_path_{inlet.number}_{list(book.view.routes).index(route.name)}"
    if any(item.variable == Token(variable) for item in book.maps):
        return variable
    path = ("routes", route.name, "rewrite", "path_prefix")
    new, old = prefix.rstrip("/"), rule.path.value.rstrip("/")
    begins = quote.literal(old) if percent(old) == old else f"(?:{quote.literal(old)}|{quote.literal(percent(old))})"
    entries = (
        (Token("default"), Token('""')),
        (quote.plain(f"~^{begins}(/.*)$"), quote.script(f"{quote.embed(new)}$1")),
        (quote.plain(f"~^{begins}(\\?.*)?$"), Token(quote.script(f"{quote.embed(new or '/')}$1").text, path)),
    )
    return book.map("$request_uri", variable, entries)


def _request_headers(book: RenderContext, inlet: Inlet, route: Route, grpc: bool) -> tuple[tuple[Token, Token], ...]:
    """The last word on a name is the user's; nginx's own come first."""
    found: dict[str, Token] = {
        "host": Token("$lb_host"),
        "x-forwarded-for": Token(inlet.forwarded_for),
        "x-forwarded-proto": Token(inlet.forwarded_proto),
        inlet.request_id_header.lower(): Token(inlet.request_id),
    }
    if not grpc:
        found["connection"] = Token("$lb_connection" if route.websocket else '""')
        if route.websocket:
            found["upgrade"] = Token("$lb_upgrade")
    found |= {name: Token('""') for name in (*HOP_BY_HOP, *INTERNAL)}
    for name in inlet.told:
        found[name] = Token(f"$lb_in{inlet.number}_{name.replace('-', '_')}") if inlet.trusted else Token('""')
    found |= auth.forwarded(book, route, list(book.view.routes).index(route.name))
    if route.rewrite is not None and route.rewrite.host is not None:
        found["host"] = quote.value(route.rewrite.host, ("routes", route.name, "rewrite", "host"))
    path = ("routes", route.name, "headers", "request")
    found |= {name.lower(): Token('""', (*path, "remove")) for name in route.request_headers.remove}
    found |= {name.lower(): quote.value(text, (*path, "set", name)) for name, text in route.request_headers.set}
    return tuple((quote.plain(name), text) for name, text in sorted(found.items()))


def passed_on(book: RenderContext, inlet: Inlet) -> None:
    """Maps for what only a trusted peer may say of the client: empty from others."""
    if inlet.trusted is None:
        return
    for name in inlet.told:
        word = name.replace("-", "_")
        entries = ((Token("default"), Token('""')), (Token("1"), Token(f"$http_{word}")))
        book.map(inlet.trusted, f"$lb_in{inlet.number}_{word}", entries)


def _hidden(book: RenderContext, inlet: Inlet, route: Route) -> tuple[Token, ...]:
    """Response headers of a replica that do not go on: removed ones, and those that are set anew."""
    rules = route.response_headers
    wanted = {*(name.lower() for name in rules.remove), *(name.lower() for name, _ in rules.set)}
    for name in sorted(wanted & _NOT_PASSED & {item.lower() for item in rules.remove}):
        path = ("routes", route.name, "headers", "response", "remove")
        book.warn("route.headers", path, f"nginx writes {name!r} itself, without its version, and cannot leave it out")
    return tuple(quote.plain(name) for name in sorted(wanted | {inlet.request_id_header.lower()}))


def _tls(book: RenderContext, pool: Pool) -> Tls | None:
    if pool.tls is None:
        return None
    name = pool.tls.server_name or _only_host(pool)
    path = ("pools", pool.name, "tls")
    if name is None:
        book.warn(
            "pool.tls",
            (*path, "server_name"),
            "nginx verifies one name for all replicas of a pool, and they have several: nothing is sent to them",
            "write the name that stands in their certificates",
        )
        return None
    return Tls(
        name=quote.value(name, (*path, "server_name")),
        ca=quote.plain(pool.tls.ca, (*path, "ca")) if pool.tls.ca else None,
        certificate=quote.value(pool.tls.certificate, (*path, "certificate")) if pool.tls.certificate else None,
        key=quote.value(pool.tls.key, (*path, "key")) if pool.tls.key else None,
    )


def _only_host(pool: Pool) -> str | None:
    """The host of all replicas, where it is the same; anything, where nothing is verified."""
    discovery = getattr(pool.discovery, "name", None)
    hosts = {item.address.host for item in pool.replicas} | ({discovery} if discovery else set())
    if len(hosts) == 1:
        return str(hosts.pop())
    return None if pool.tls is not None and pool.tls.ca is not None else pool.name

"""Sends a request to a pool, with nginx's proxy or gRPC module: address, headers, timeouts, attempts, TLS."""

from __future__ import annotations

from urllib.parse import quote as percent

from lbctl.ir.listeners import Rule
from lbctl.ir.pools import Pool
from lbctl.ir.routes import Route
from lbctl.targets.client_identity import HOP_BY_HOP, INTERNAL
from lbctl.targets.nginx import auth, header_text, hosted, names, quote
from lbctl.targets.nginx.blocks import UpstreamBlock
from lbctl.targets.nginx.location_blocks import Forwarding, Tls
from lbctl.targets.nginx.render_context import ListenerScope, RenderContext
from lbctl.targets.token import Token

FOREVER = 24 * 86_400_000
"""Maximum time in milliseconds: nginx stores times in 31 bits."""
_REMOVED = "keep-alive"
"""Connection header that nginx itself removes."""
_LINE = 170
"""Maximum length, in characters, of a line of directives that remove headers."""
_SPEAKS_HTTP2 = (1, 29, 4)
_KINDS_OF_PATHS = {"$request_uri": "path", "$uri": "uri", "$lb_sent_uri": "copied_uri"}
"""Maps the source of a path to the variable's name."""
_NOT_PASSED = frozenset({"date", "server", "x-pad"})
"""Response headers of replicas that nginx never forwards, because it writes its own."""


def forwarding(
    context: RenderContext,
    scope: ListenerScope,
    route: Route,
    rule: Rule,
    pool: Pool,
    upstream: UpstreamBlock,
    copy: bool = False,
) -> Forwarding | None:
    """Return the directives that send a request of `route` to `upstream`.

    With `copy`, they are for a mirrored request. Return None if the replicas' certificates cannot be verified as the
    pool requires, in which case nothing may be sent to them.
    """
    tls = _tls(context, pool)
    if pool.tls is not None and tls is None:
        return None
    grpc = pool.protocol == "grpc"
    source = ("$lb_sent_uri" if copy else "$uri") if grpc else "$request_uri"
    path = _rewritten_path(context, scope, route, rule, source)
    sent_path = path or (source if copy else "")
    attempts = 0 if copy or "connect_failure" not in route.retry.when else route.retry.attempts
    idle = min(item or FOREVER for item in (route.idle_timeout, route.request_timeout, route.attempt_timeout))
    headers = hosted.headers(context, pool, _request_headers(context, scope, route, pool))
    return Forwarding(
        module=Token("grpc" if grpc else "proxy"),
        url=_url(pool, upstream, "" if grpc else sent_path),
        path=Token(path) if path and not copy else None,
        new_uri=Token(sent_path) if grpc and sent_path else None,
        http_version=None if grpc else Token(_http_version(context, pool)),
        removed_headers=_joined("grpc" if grpc else "proxy", [name for name, text in headers if text.text == '""']),
        request_headers=tuple((name, text) for name, text in headers if text.text != '""'),
        hide=_hidden_headers(context, scope, route),
        connect=pool.connect_timeout,
        idle=min(idle, 30_000) if copy else idle,
        tries=attempts + 1,
        next_timeout=0 if route.retry.idempotent else (attempts + 1) * pool.connect_timeout + 1_000,
        conditions=_conditions(route, attempts),
        tls=tls,
        on_502=Token("@$lb_on_502"),
        on_504=Token("@$lb_on_504"),
    )


def _http_version(context: RenderContext, pool: Pool) -> str:
    return "2" if pool.protocol == "http2" and context.version >= _SPEAKS_HTTP2 else "1.1"


def _conditions(route: Route, attempts: int) -> Token:
    if attempts == 0:
        return Token("off")
    return Token("error timeout non_idempotent" if route.retry.idempotent else "error timeout")


def _url(pool: Pool, upstream: UpstreamBlock, path: str) -> Token:
    scheme = "grpc" if pool.protocol == "grpc" else "http"
    return hosted.url(pool, f"{scheme}{'s' if pool.tls else ''}://{upstream.name.text}", path)


def _rewritten_path(context: RenderContext, scope: ListenerScope, route: Route, rule: Rule, source: str) -> str:
    """Return the variable that contains the rewritten path; empty if the path is not rewritten."""
    if route.rewrite is None or route.rewrite.path_prefix is None or rule.path.kind == "regex":
        return ""
    return _new_path(context, scope, route, rule, route.rewrite.path_prefix, source)


def _new_path(context: RenderContext, scope: ListenerScope, route: Route, rule: Rule, prefix: str, source: str) -> str:
    """Return the variable that contains the new path for the path in the variable `source`.

    With `$request_uri` it also contains the query, both with the client's own escapes. In this case it is empty if the
    client escapes the prefix differently than the rule (`/a%3Ab/` for `/a:b/`), because nginx cannot find the part to
    replace.
    """
    number, kind = list(context.view.routes).index(route.name), _KINDS_OF_PATHS[source]
    variable = f"$lb_{kind}_{scope.number}_{number}"
    if context.has_map(variable):
        return variable
    path = ("routes", route.name, "rewrite", "path_prefix")
    new, old = prefix.rstrip("/"), rule.path.value.rstrip("/")
    prefix_pattern = (
        quote.literal(old)
        if source != "$request_uri" or percent(old) == old
        else f"(?:{quote.literal(old)}|{quote.literal(percent(old))})"
    )
    entries = (
        (Token("default"), Token('""')),
        (
            quote.plain(f"~^{prefix_pattern}{names.group(variable, '/.*')}$"),
            quote.script(f"{quote.embed(new)}{names.captured(variable)}"),
        ),
        (
            quote.plain(f"~^{prefix_pattern}{names.group(variable, '(?:[?].*)?', '_query')}$"),
            Token(quote.script(f"{quote.embed(new or '/')}{names.captured(variable, '_query')}").text, path),
        ),
    )
    return context.map(source, variable, entries)


def _request_headers(
    context: RenderContext, scope: ListenerScope, route: Route, pool: Pool
) -> tuple[tuple[Token, Token], ...]:
    """Return the request headers for the replica, sorted by name.

    The user's settings override nginx's.
    """
    headers: dict[str, Token] = {
        "host": Token("$lb_host"),
        "x-forwarded-for": Token(scope.forwarded_for),
        "x-forwarded-proto": Token(scope.forwarded_proto),
        scope.request_id_header.lower(): Token(scope.request_id),
    }
    if pool.protocol != "grpc":
        headers["connection"] = Token("$lb_connection" if route.websocket else '""')
        if route.websocket:
            headers["upgrade"] = Token("$lb_upgrade")
    headers |= {name: Token('""') for name in (*HOP_BY_HOP, *INTERNAL) if name != _REMOVED}
    for name in scope.claim_headers:
        headers[name] = Token(f"$lb_in{scope.number}_{name.replace('-', '_')}") if scope.trusted else Token('""')
    headers |= {name: Token("$remote_addr") for name in scope.address_headers}
    headers |= auth.forwarded(context, route, list(context.view.routes).index(route.name))
    if route.rewrite is not None and route.rewrite.host is not None:
        headers["host"] = quote.value(route.rewrite.host, ("routes", route.name, "rewrite", "host"))
    path = ("routes", route.name, "headers", "request")
    headers |= {name.lower(): Token('""', (*path, "remove")) for name in route.request_headers.remove}
    headers |= {
        name.lower(): header_text.token(context, scope, route, pool.name, text, (*path, "set", name))
        for name, text in route.request_headers.set
    }
    return tuple((quote.plain(name), text) for name, text in sorted(headers.items()))


def _joined(module: str, names: list[Token]) -> tuple[Token, ...]:
    """Return the directives that remove these request headers, with as many headers per line as fit."""
    lines: list[str] = []
    for name in names:
        directive = f'{module}_set_header {name.text} "";'
        if lines and len(lines[-1]) + len(directive) < _LINE:
            lines[-1] += f" {directive}"
        else:
            lines.append(directive)
    return tuple(map(Token, lines))


def map_claim_headers(context: RenderContext, scope: ListenerScope) -> None:
    """Add the maps for headers that only a trusted peer may send. The maps are empty for other peers."""
    if scope.trusted is None:
        return
    for name in scope.claim_headers:
        variable_suffix = name.replace("-", "_")
        entries = ((Token("default"), Token('""')), (Token("1"), Token(f"$http_{variable_suffix}")))
        context.map(scope.trusted, f"$lb_in{scope.number}_{variable_suffix}", entries)


def _hidden_headers(context: RenderContext, scope: ListenerScope, route: Route) -> tuple[Token, ...]:
    """Return the replica's response headers that are not forwarded, because they are removed or replaced."""
    rules = route.response_headers
    hidden = {*(name.lower() for name in rules.remove), *(name.lower() for name, _ in rules.set)}
    for name in sorted(hidden & _NOT_PASSED & {item.lower() for item in rules.remove}):
        path = ("routes", route.name, "headers", "response", "remove")
        context.warn("route.headers", path, f"nginx writes {name!r} itself, without its version, and cannot omit it")
    return tuple(quote.plain(name) for name in sorted(hidden | {scope.request_id_header.lower()}))


def _tls(context: RenderContext, pool: Pool) -> Tls | None:
    if pool.tls is None:
        return None
    name = pool.tls.server_name or _only_host(pool)
    path = ("pools", pool.name, "tls")
    if name is None:
        context.warn(
            "pool.tls",
            (*path, "server_name"),
            "nginx verifies the same name for all replicas of a pool, but these replicas have different names: the "
            "pool receives no requests",
            "set server_name to the name in the certificates of the replicas",
        )
        return None
    return Tls(
        name=quote.value(name, (*path, "server_name")),
        ca=quote.plain(pool.tls.ca, (*path, "ca")) if pool.tls.ca else None,
        certificate=quote.value(pool.tls.certificate, (*path, "certificate")) if pool.tls.certificate else None,
        key=quote.value(pool.tls.key, (*path, "key")) if pool.tls.key else None,
    )


def _only_host(pool: Pool) -> str | None:
    """Return the replicas' common host.

    If hosts differ, return None, or the pool's name if nothing is verified and any name is sufficient.
    """
    discovered_name = getattr(pool.discovery, "name", None)
    hosts = {item.address.host for item in pool.replicas} | ({discovered_name} if discovered_name else set())
    if len(hosts) == 1:
        return str(hosts.pop())
    return None if pool.tls is not None and pool.tls.ca is not None else pool.name

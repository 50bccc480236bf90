"""A listener as `server` blocks, one per certificate, and the trusted peers that may report the client's address."""

from __future__ import annotations

from lbctl.ir.listeners import Listener, ListenerTls
from lbctl.ir.routes import Forward, access
from lbctl.targets import own_lines
from lbctl.targets.client_identity import CLAIMS
from lbctl.targets.nginx import access as clients
from lbctl.targets.nginx import auth, local_replies, log, names, pick, quote, rules
from lbctl.targets.nginx.blocks import Geo, Identity, LogFormat, ServerBlock
from lbctl.targets.nginx.forward import FOREVER, map_claim_headers
from lbctl.targets.nginx.installation import STREAMS, SYSTEM_LOG, is_system_wide, log_file
from lbctl.targets.nginx.render_context import ListenerScope, RenderContext
from lbctl.targets.nginx.route import Routes
from lbctl.targets.token import Token

_ACCEPTABLE_ID = r"[!#-\[\]-~]{1,200}"
"""Plain text without characters that JSON escapes."""
_HAS_HTTP2_ON = (1, 25, 1)
_ANYONE = ("0.0.0.0/0", "::/0", "unix:")
_SPELLINGS = {clients.READS_ALL_LINES: "X-Forwarded-For", "x-real-ip": "X-Real-IP"}


def build(context: RenderContext, routes: Routes, listener: Listener, number: int) -> tuple[ServerBlock, LogFormat]:
    """Return the `server` blocks of a listener and the format of its access log."""
    scope = _scope(context, listener, number)
    map_claim_headers(context, scope)
    _warn_about_grpc(context, listener)
    tls, path = listener.tls, ("listeners", listener.name)
    only = routes.only_location(listener, scope)
    target = None if only else Token(f"@{rules.table(context, listener, number, routes.targets)}")
    log_format = log.formats(context.view, listener, number, scope.request_id)
    server = ServerBlock(
        listen=_listen(context, listener),
        http2=listener.http2 and context.version >= _HAS_HTTP2_ON,
        identities=tuple(_identities(tls, (*path, "tls"))),
        protocols=Token("TLSv1.3" if tls.min_version == "1.3" else "TLSv1.2 TLSv1.3") if tls else None,
        client_ca=quote.plain(tls.client_ca, (*path, "tls", "client_ca")) if tls and tls.client_ca else None,
        verify=Token("on" if tls.client_certificate == "required" else "optional") if tls and tls.client_ca else None,
        challenge=auth.challenges(context, listener),
        client_crl=quote.plain(tls.client_crl, (*path, "tls", "client_crl")) if tls and tls.client_crl else None,
        trusted=_trusted_peers(context, listener),
        address_header=_address_header(context, listener),
        several_addresses=_several_addresses(context, listener, number, scope.trusted),
        max_body=listener.max_body or 0,
        header_timeout=listener.request_headers_timeout,
        idle_timeout=listener.idle_timeout or FOREVER,
        log_path=_log_path(context, listener),
        logged=log.condition(context),
        log_format=log_format.name,
        traffic_log=log.traffic_server(context.view),
        request_id=(quote.plain(listener.request_id, (*path, "request_id")), Token(scope.request_id)),
        target=target,
        only=only,
        variables=log.variables(context.view),
        has_grpc=_has_grpc(context, listener),
        max_header_bytes=listener.max_header_bytes,
        no_route=rules.no_route(number, listener),
        has_regex=any(rule.path.kind == "regex" for rule in listener.rules),
        locations=() if only else routes.locations(listener, scope),
        refused=() if only else clients.conditions(context, listener, access(listener), scope.trusted),
        checks=routes.checks(listener, scope),
        questions=routes.questions(listener),
        pick_log=pick.log_server(context.view),
        mirrors=routes.mirrors(listener, scope),
        own_headers=local_replies.headers_of(context, listener, scope),
        own_lines=own_lines.tokens(context.view.proxy, "server", listener.name),
    )
    return server, log_format


def _listen(context: RenderContext, listener: Listener) -> Token:
    parameters = [quote.plain(str(listener.bind)).text]
    if listener.tls is not None:
        parameters.append("ssl")
        if listener.http2 and context.version < _HAS_HTTP2_ON:
            parameters.append("http2")
    elif _is_http2_alone(context, listener):
        parameters.append("http2")
    if listener.proxy_protocol:
        parameters.append("proxy_protocol")
    return Token(" ".join(parameters), ("listeners", listener.name, "bind"))


def _warn_about_grpc(context: RenderContext, listener: Listener) -> None:
    """Warn if a listener that only uses HTTP/1.1 has gRPC routes.

    gRPC needs HTTP/2, and older versions of nginx cannot offer it together with HTTP/1.1 without TLS.
    """
    if listener.tls is not None or (listener.http2 and context.version >= _HAS_HTTP2_ON):
        return
    if _has_grpc(context, listener) and not _is_http2_alone(context, listener):
        message = "this listener supports only HTTP/1.1, so gRPC clients cannot use it"
        hint = "use a separate listener for gRPC, TLS, or nginx 1.25.1"
        context.warn("listener.h2c", ("listeners", listener.name, "bind"), message, hint)


def _is_http2_alone(context: RenderContext, listener: Listener) -> bool:
    """Return whether a cleartext listener of an older nginx uses only HTTP/2, because all its routes use gRPC."""
    if listener.tls is not None or not listener.http2 or context.version >= _HAS_HTTP2_ON:
        return False
    actions = [context.view.routes[rule.route].action for rule in listener.rules]
    return (
        bool(actions)
        and all(isinstance(action, Forward) for action in actions)
        and _protocols(context, listener) == {"grpc"}
    )


def _has_grpc(context: RenderContext, listener: Listener) -> bool:
    return "grpc" in _protocols(context, listener)


def _protocols(context: RenderContext, listener: Listener) -> set[str]:
    """Return the protocols of the pools that the listener routes to."""
    actions = [context.view.routes[rule.route].action for rule in listener.rules]
    pools = {name for action in actions if isinstance(action, Forward) for name in action.pools}
    return {context.view.pools[name].protocol for name in pools}


def _identities(tls: ListenerTls | None, path: tuple[str, ...]) -> list[Identity]:
    if tls is None:
        return []
    source = (*path, "certificates")
    return [
        Identity(
            certificate=quote.value(item.certificate, source),
            key=quote.value(item.key, source),
            hosts=tuple(quote.plain(host) for host in item.hosts),
        )
        for item in tls.certificates
    ]


def _log_path(context: RenderContext, listener: Listener) -> Token | None:
    """Return the path of the access log, with a warning if a service cannot open it; None if the log is disabled."""
    place = log_file(context.view.proxy, listener)
    path = ("listeners", listener.name, "access_log", "path")
    if place in STREAMS and is_system_wide(context.view.proxy):
        context.warn(
            "listener.access_log",
            path,
            f"nginx does not start as a systemd service with {place}, which is a socket there, and a daemon loses "
            "this log at its first reload",
            f"remove the setting to log to {SYSTEM_LOG} (which is standard output in nginx images)",
        )
    return None if place is None else quote.value(place, path)


def _trusted_peers(context: RenderContext, listener: Listener) -> tuple[Token, ...]:
    """Return the networks of peers that may report the client's address."""
    path = ("listeners", listener.name, "client_address")
    if listener.client_address is not None:
        if listener.proxy_protocol:
            context.warn(
                "listener.client_address",
                (*path, "header"),
                "nginx reads the client's address from a single source: for trusted peers, it uses the PROXY "
                "protocol, not the header",
            )
        if not listener.proxy_protocol and clients.reads_forged_line(context, listener):
            header = listener.client_address.header
            context.warn(
                "listener.client_address",
                (*path, "header"),
                f"before 1.23, nginx reads only the first line of {header}, which a client can forge, so nginx ignores "
                "the header and treats the trusted peer as the client",
                "use x-forwarded-for, or nginx 1.23",
            )
            return ()
        return tuple(quote.plain(item, (*path, "trusted")) for item in listener.client_address.trusted)
    return tuple(map(Token, _ANYONE)) if listener.proxy_protocol else ()


def _several_addresses(context: RenderContext, listener: Listener, number: int, trusted: str | None) -> Token | None:
    """Return the variable that is 1 if a trusted peer reports the client in several header lines.

    The variable exists only for headers of which nginx reads only one line.
    """
    client = listener.client_address
    if client is None or listener.proxy_protocol or client.header.lower() == clients.READS_ALL_LINES:
        return None
    source = names.header(client.header)
    if source is None or clients.reads_forged_line(context, listener):
        return None
    entries = ((Token("default"), Token('""')), (quote.plain("~^1\\n.*,"), Token("1")))
    return Token(context.map(f"{trusted}\n{source}", f"$lb_several{number}", entries))


def _address_header(context: RenderContext, listener: Listener) -> Token | None:
    if listener.proxy_protocol:
        return Token("proxy_protocol")
    if listener.client_address is None or clients.reads_forged_line(context, listener):
        return None
    header = listener.client_address.header.lower()
    return quote.plain(_SPELLINGS.get(header, header), ("listeners", listener.name, "client_address", "header"))


def _scope(context: RenderContext, listener: Listener, number: int) -> ListenerScope:
    trusted = None
    if listener.client_address is not None:
        trusted = f"$lb_trusted{number}"
        networks = tuple(quote.plain(item) for item in listener.client_address.trusted)
        context.geos.append(Geo(Token("$realip_remote_addr"), Token(trusted), networks))
    return ListenerScope(
        listener=listener.name,
        number=number,
        request_id_header=listener.request_id,
        request_id=_request_id(context, listener, number, trusted),
        forwarded_for=_forwarded_for(context, listener, number, trusted),
        forwarded_proto=_forwarded_proto(context, number, trusted),
        claim_headers=_claim_headers(listener),
        address_headers=listener.address_headers,
        trusted=trusted,
    )


def _claim_headers(listener: Listener) -> tuple[str, ...]:
    header = listener.client_address.header if listener.client_address else ""
    own = () if header in ("", "x-forwarded-for", "x-forwarded-proto", *CLAIMS) else (header,)
    return tuple(name for name in (*CLAIMS, *own) if name not in listener.address_headers)


def _request_id(context: RenderContext, listener: Listener, number: int, trusted: str | None) -> str:
    """Return the variable that contains the request ID.

    A trusted peer's ID is kept if it is plain text with at most 200 characters; otherwise nginx generates an ID.
    """
    if trusted is None:
        return "$request_id"
    client_id = names.header(listener.request_id)
    if client_id is None:
        path = ("listeners", listener.name, "request_id")
        context.warn(
            "listener.request_id", path, "nginx drops request headers with this name, so it always generates a new ID"
        )
        return "$request_id"
    variable = f"$lb_id{number}"
    acceptable = f"~^1\\n{names.group(variable, _ACCEPTABLE_ID)}\\z"
    entries = ((Token("default"), Token("$request_id")), (quote.plain(acceptable), Token(names.captured(variable))))
    return context.map(f"{trusted}\n{client_id}", variable, entries)


def _forwarded_for(context: RenderContext, listener: Listener, number: int, trusted: str | None) -> str:
    """Return the x-forwarded-for for replicas: a trusted peer's list, if any, followed by the peer's address."""
    peer = "$remote_addr" if listener.proxy_protocol else "$realip_remote_addr"
    if trusted is None:
        return peer
    variable = f"$lb_for{number}"
    from_trusted = f"~^1\\n{names.group(variable, '.+')}\\z"
    appended = quote.script(f"{names.captured(variable)}, {peer}")
    entries = ((Token("default"), Token(peer)), (quote.plain(from_trusted), appended))
    return context.map(f"{trusted}\n$http_x_forwarded_for", variable, entries)


def _forwarded_proto(context: RenderContext, number: int, trusted: str | None) -> str:
    if trusted is None:
        return "$scheme"
    variable = f"$lb_proto{number}"
    from_trusted = quote.plain(f"~^1\\n{names.group(variable, 'https?')}\\z")
    entries = ((Token("default"), Token("$scheme")), (from_trusted, Token(names.captured(variable))))
    return context.map(f"{trusted}\n$http_x_forwarded_proto", variable, entries)

"""A listener as `server` blocks, one for each certificate, and what nginx believes of the client's address."""

from __future__ import annotations

from lbctl.ir.listeners import Listener as Wanted
from lbctl.ir.listeners import ListenerTls
from lbctl.ir.routes import Forward
from lbctl.targets.client_headers import CLAIMS
from lbctl.targets.nginx import log, names, quote, rules
from lbctl.targets.nginx.blocks import Geo, Identity, Listener, LogFormat
from lbctl.targets.nginx.forward import FOREVER, Inlet, passed_on
from lbctl.targets.nginx.render_context import RenderContext
from lbctl.targets.nginx.route import Routes
from lbctl.targets.token import Token

_HAS_HTTP2_ON = (1, 25, 1)
_ANYONE = ("0.0.0.0/0", "::/0", "unix:")
_JOINS_HEADERS = (1, 23, 0)
"""From here on a variable `$http_name` holds all lines of a header; before, the first one alone."""
_READS_ALL_LINES = "x-forwarded-for"
"""Of this header, in nginx's own spelling, the real-IP module reads every line; of any other the first one alone."""
_SPELLINGS = {_READS_ALL_LINES: "X-Forwarded-For", "x-real-ip": "X-Real-IP"}


def build(book: RenderContext, routes: Routes, listener: Wanted, number: int) -> tuple[Listener, LogFormat]:
    inlet = _inlet(book, listener, number)
    passed_on(book, inlet)
    _tell_grpc(book, listener)
    tls, path = listener.tls, ("listeners", listener.name)
    target = rules.table(book, listener, number, routes.targets)
    written = log.formats(listener, number, inlet.request_id)
    server = Listener(
        listen=_listen(book, listener),
        http2=listener.http2 and book.version >= _HAS_HTTP2_ON,
        identities=tuple(_identities(tls, (*path, "tls"))),
        protocols=Token("TLSv1.3" if tls.min_version == "1.3" else "TLSv1.2 TLSv1.3") if tls else None,
        client_ca=quote.plain(tls.client_ca, (*path, "tls", "client_ca")) if tls and tls.client_ca else None,
        verify=Token("on" if tls.client_certificate == "required" else "optional") if tls and tls.client_ca else None,
        trusted=_believed(book, listener),
        address_header=_address_header(book, listener),
        several_addresses=_several_addresses(book, listener, number, inlet.trusted),
        max_body=listener.max_body or 0,
        header_timeout=listener.request_headers_timeout,
        idle_timeout=listener.idle_timeout or FOREVER,
        log_path=_log_path(listener),
        log_format=written.name,
        request_id=(quote.plain(listener.request_id, (*path, "request_id")), Token(inlet.request_id)),
        target=Token(f"@{target}"),
        has_regex=any(rule.path.kind == "regex" for rule in listener.rules),
        locations=routes.locations(listener, inlet),
        mirrors=routes.mirrors(listener, inlet),
    )
    return server, written


def _listen(book: RenderContext, listener: Wanted) -> Token:
    words = [quote.plain(str(listener.bind)).text]
    if listener.tls is not None:
        words.append("ssl")
        if listener.http2 and book.version < _HAS_HTTP2_ON:
            words.append("http2")
    if listener.proxy_protocol:
        words.append("proxy_protocol")
    return Token(" ".join(words), ("listeners", listener.name, "bind"))


def _tell_grpc(book: RenderContext, listener: Wanted) -> None:
    """gRPC is HTTP/2, and an old nginx cannot offer that beside HTTP/1.1 without TLS."""
    if listener.tls is not None or (listener.http2 and book.version >= _HAS_HTTP2_ON):
        return
    actions = [book.view.routes[rule.route].action for rule in listener.rules]
    reached = {name for action in actions if isinstance(action, Forward) for name in action.pools}
    if any(book.view.pools[name].protocol == "grpc" for name in reached):
        message = "this listener speaks HTTP/1.1 alone: gRPC clients cannot use it"
        book.warn("listener.h2c", ("listeners", listener.name, "bind"), message, "give it tls, or use nginx 1.25.1")


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


def _log_path(listener: Wanted) -> Token | None:
    if listener.access_log.format == "none":
        return None
    return quote.value(listener.access_log.path, ("listeners", listener.name, "access_log", "path"))


def _believed(book: RenderContext, listener: Wanted) -> tuple[Token, ...]:
    """The peers of which nginx takes the client's address."""
    path = ("listeners", listener.name, "client_address")
    if listener.client_address is not None:
        if listener.proxy_protocol:
            book.warn(
                "listener.client_address",
                (*path, "header"),
                "nginx takes the client's address from one place: from trusted peers the PROXY protocol's is believed, "
                "the header is not",
            )
        if not listener.proxy_protocol and _reads_forged_line(book, listener):
            header = listener.client_address.header
            book.warn(
                "listener.client_address",
                (*path, "header"),
                f"nginx before 1.23 reads the first line of {header} alone, which a client can write: "
                "it is not believed, and the trusted peer counts as the client",
                "name the client in x-forwarded-for, or use nginx 1.23",
            )
            return ()
        return tuple(quote.plain(item, (*path, "trusted")) for item in listener.client_address.trusted)
    return tuple(map(Token, _ANYONE)) if listener.proxy_protocol else ()


def _reads_forged_line(book: RenderContext, listener: Wanted) -> bool:
    """Whether a second line of the header that names the client can neither be read nor be noticed."""
    client = listener.client_address
    return client is not None and client.header.lower() != _READS_ALL_LINES and book.version < _JOINS_HEADERS


def _several_addresses(book: RenderContext, listener: Wanted, number: int, trusted: str | None) -> Token | None:
    """The variable that is 1 where a trusted peer names the client in a header of which nginx reads one line, and there
    are several."""
    client = listener.client_address
    if client is None or listener.proxy_protocol or client.header.lower() == _READS_ALL_LINES:
        return None
    source = names.header(client.header)
    if source is None or _reads_forged_line(book, listener):
        return None
    entries = ((Token("default"), Token('""')), (quote.plain("~^1\\n.*,"), Token("1")))
    return Token(book.map(f"{trusted}\n{source}", f"$lb_several{number}", entries))


def _address_header(book: RenderContext, listener: Wanted) -> Token | None:
    if listener.proxy_protocol:
        return Token("proxy_protocol")
    if listener.client_address is None or _reads_forged_line(book, listener):
        return None
    header = listener.client_address.header.lower()
    return quote.plain(_SPELLINGS.get(header, header), ("listeners", listener.name, "client_address", "header"))


def _inlet(book: RenderContext, listener: Wanted, number: int) -> Inlet:
    trusted = None
    if listener.client_address is not None:
        trusted = f"$lb_trusted{number}"
        networks = tuple(quote.plain(item) for item in listener.client_address.trusted)
        book.geos.append(Geo(Token("$realip_remote_addr"), Token(trusted), networks))
    return Inlet(
        number=number,
        request_id_header=listener.request_id,
        request_id=_request_id(book, listener, number, trusted),
        forwarded_for=_forwarded_for(book, listener, number, trusted),
        forwarded_proto=_forwarded_proto(book, number, trusted),
        told=_told(listener),
        trusted=trusted,
    )


def _told(listener: Wanted) -> tuple[str, ...]:
    header = listener.client_address.header if listener.client_address else ""
    own = () if header in ("", "x-forwarded-for", "x-forwarded-proto", *CLAIMS) else (header,)
    return (*CLAIMS, *own)


def _request_id(book: RenderContext, listener: Wanted, number: int, trusted: str | None) -> str:
    """Kept if it is plain text of at most 200 characters, and the peer is not a stranger; else made."""
    given = names.header(listener.request_id)
    if given is None:
        path = ("listeners", listener.name, "request_id")
        book.warn("listener.request_id", path, "nginx drops request headers of that name: an id is always made")
        return "$request_id"
    kept = f"~^{'1' if trusted else ''}\\n([!#-\\[\\]-~]{{1,200}})\\z"
    entries = ((Token("default"), Token("$request_id")), (quote.plain(kept), Token("$1")))
    return book.map(f"{trusted or ''}\n{given}", f"$lb_id{number}", entries)


def _forwarded_for(book: RenderContext, listener: Wanted, number: int, trusted: str | None) -> str:
    """The peer is appended; what a stranger sent before it is dropped."""
    peer = "$remote_addr" if listener.proxy_protocol else "$realip_remote_addr"
    if trusted is None:
        return peer
    grown = "~^1\\n(.+)\\z"
    entries = ((Token("default"), Token(peer)), (quote.plain(grown), quote.script(f"$1, {peer}")))
    return book.map(f"{trusted}\n$http_x_forwarded_for", f"$lb_for{number}", entries)


def _forwarded_proto(book: RenderContext, number: int, trusted: str | None) -> str:
    if trusted is None:
        return "$scheme"
    entries = ((Token("default"), Token("$scheme")), (quote.plain("~^1\\n(https?)\\z"), Token("$1")))
    return book.map(f"{trusted}\n$http_x_forwarded_proto", f"$lb_proto{number}", entries)

"""A listener as a frontend: its address, trusted client information, and how its rules process a request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.listeners import Certificate, ClientAddress, Listener, Rule
from lbctl.ir.routes import Forward, Route
from lbctl.ir.snapshot import View
from lbctl.targets import client_identity
from lbctl.targets.assess import CLOSED
from lbctl.targets.features import BY_ID
from lbctl.targets.haproxy import (
    access,
    auth,
    bodies,
    hash_vars,
    limits,
    logs,
    models,
    own_lines,
    pick,
    pool_selection,
    process,
    quote,
    request_checks,
    route,
    sections,
    servers,
)
from lbctl.targets.haproxy.match import Acls, conditions_but_model, rules
from lbctl.targets.haproxy.quote import duration, line
from lbctl.targets.reading import by_model, wants_clear_model
from lbctl.targets.response_bodies import NO_MODEL, UNKNOWN_MODEL
from lbctl.targets.token import Token, read_by

NO_ROUTE = quote.error("no route", "not_found")
_DEFINITIONS = (
    (line("http-request set-var(txn.authority) req.hdr(host)"),),
    (line("http-request set-var(txn.host) req.hdr(host),host_only,rtrim(.)"),),
    (
        line("http-request set-var(txn.path) path,url_dec"),
        line("http-request set-var-fmt(txn.segments) '%[var(txn.path)]/'"),
    ),
    (line("acl routed var(txn.route) -m found"),),
    (line("acl chosen var(txn.pool) -m found"),),
    (line("acl drawn var(txn.draw) -m found"),),
)
"""Variables and ACLs that rules and routes may read, in groups that are rendered or omitted as a whole."""
_WAITS_FOR_NO_STREAM = (3, 3)
"""First version that does not wait for an HTTP/2 body without a length; observed with 3.4.7."""
_TOO_LARGE = quote.error("the request body is too large", "too_large")
_SPARE = 5 * 1024
"""Part of a full buffer that contains no body, in bytes: HAProxy's reserve for changes, and its metadata about the
message."""
_NO_LENGTH = quote.error("send a content-length", "no_length")


@dataclass(frozen=True, slots=True)
class Frontend:
    """The parts of one frontend, in template order."""

    name: Token
    """Name of the section."""
    bind: Token
    """Address and its bind parameters."""
    bind_from_33: Token | None
    """Address and parameters for HAProxy 3.3 and later, regardless of the rendered version; None if they are the same
    as for older versions."""
    settings: tuple[Token, ...]
    """Lines for limits, timeouts and logs."""
    client: tuple[Token, ...]
    """Lines that determine the client's address and the request ID, and remove headers that clients may not set."""
    trusts: int
    """1 if client information from trusted peers is kept."""
    tls: int
    """1 if clients use TLS."""
    refusals: tuple[Token, ...]
    """Lines that reject malformed and ambiguous requests."""
    routing: tuple[Token, ...]
    """Lines that determine the route and the pool of a request, and reject or change it."""
    own_lines: tuple[Token, ...]
    """The operator's own lines."""
    to_pool: tuple[Token, ...]
    """Lines that choose the backend."""
    answers: tuple[Token, ...]
    """Lines that change responses."""
    queues: int
    """1 if requests may wait for a replica."""
    queue_times: tuple[Token, ...]
    """Lines that compute the queue time for the access log, if requests may also wait at the picker."""
    filters: tuple[Token, ...]
    """The last lines, which refer to other files: after them, `default-path` does not apply to paths."""


def frontend(listener: Listener, view: View, read_elsewhere: frozenset[str]) -> Frontend:
    """Return the frontend of a listener. `read_elsewhere` contains the variables that other sections read.

    Unused definitions are omitted.
    """
    acls = Acls()
    rule_lines = tuple(rules(listener, acls))
    routes = [view.routes[name] for name in dict.fromkeys(rule.route for rule in listener.rules)]
    unrouted = tuple(_unrouted(listener, routes, view, acls))
    if any(rule == Rule(rule.route) for rule in listener.rules):  # such a rule takes every request
        unrouted = ()
    actions = (
        *(token for item in routes for token in _actions(item, listener, view, acls)),
        *pick.answers(listener, view),
    )
    to = pool_selection.destination(listener, view, actions)
    body = (*_body_limit(listener, view), *_model(listener, view, acls))
    routing = (*body, *rule_lines, *unrouted, to.route, *actions, to.pool, *pick.refusals(listener, view))
    settings = (*_options(listener, routes), *logs.lines(listener, view))
    own = own_lines.tokens(view.proxy, "frontend", listener.name)
    answers = (
        *_unasked_upgrade(routes),
        *(token for item in routes for token in route.response_changes(item, listener, view)),
    )
    read = read_elsewhere | read_by((*settings, *acls.lines, *routing, *own, *to.backend, *answers))
    route_acls = _needed(((_route_acl(item),) for item in routes), read)
    read |= read_by(route_acls)
    definitions = _needed(_DEFINITIONS, read)
    read |= read_by(definitions)
    unread = {pool_selection.ROUTE, pool_selection.POOL} - read
    return Frontend(
        name=Token(sections.own(f"listener_{quote.name(listener.name).text}", view.proxy)),
        bind=_bind(listener),
        bind_from_33=_bind(listener, accepts_http2=False) if _loses_bodies(listener, view) else None,
        settings=settings,
        client=(
            logs.path(listener),
            *request_checks.HEADER_SIZES,
            *_client(listener.client_address),
            *_forged_headers(listener, view),
            *_address_headers(listener),
            *_request_id(listener),
            *request_checks.header_limits(listener),
        ),
        trusts=int(listener.client_address is not None),
        tls=int(listener.tls is not None),
        refusals=tuple(request_checks.lines()),
        routing=tuple(item for item in (*definitions, *acls.lines, *route_acls, *routing) if item.sets not in unread),
        own_lines=own,
        to_pool=to.backend,
        answers=answers,
        queues=int(any(servers.limit(view.pools[name]) for item in routes for name in _pools(item))),
        queue_times=tuple(pick.queue_times(listener, view)),
        filters=tuple(pick.engines(listener, view)),
    )


def _needed(definitions: Iterable[Sequence[Token]], read: Set[str]) -> tuple[Token, ...]:
    """Return the lines of the definitions that are used."""
    return tuple(item for lines in definitions if any(item.sets in read for item in lines) for item in lines)


def diagnostics(listener: Listener, view: View) -> Iterator[Diagnostic]:
    """Yield the limitations of HAProxy for this particular listener."""
    yield from _held_streams(listener, view)
    yield from _http1_alone(listener, view)
    yield from request_checks.diagnostics(listener, view)
    yield from logs.diagnostics(listener)
    for index, item in enumerate(_certificates(listener)):
        key_path = ("listeners", listener.name, "tls", "certificates", index, "key")
        yield from process.unusable_key(item.certificate, item.key, key_path, BY_ID["listener.tls"].code)


def _held_streams(listener: Listener, view: View) -> Iterator[Diagnostic]:
    """Report that streaming gRPC clients get no response if the listener buffers bodies until they are complete."""
    streams = {name for rule in listener.rules for name in _pools(view.routes[rule.route])}
    grpc = sorted(name for name in streams if view.pools[name].protocol == "grpc")
    feature = "listener.max_body" if listener.max_body is not None else "listener.inspect"
    if grpc and (listener.max_body is not None or wants_clear_model(listener)):
        message = (
            "HAProxy buffers the bodies of this listener until they are complete: a gRPC client that streams to "
            f"{', '.join(grpc)} receives no response until its stream has ended"
        )
        path = ("listeners", listener.name, feature.partition(".")[2])
        hint = "use a separate listener for gRPC, without max_body and without models on which protection depends"
        yield Diagnostic(BY_ID[feature].code, message, path=path, hint=hint, severity="warning")


def _certificates(listener: Listener) -> tuple[Certificate, ...]:
    return listener.tls.certificates if listener.tls else ()


def _loses_bodies(listener: Listener, view: View) -> bool:
    """Return whether HAProxy 3.3 and later would read this listener's HTTP/2 bodies without a length as empty.

    `wait-for-body` does not wait for them there, so limits and models in bodies would have no effect.
    """
    return listener.max_body is not None or bodies.reads_bodies(listener, view)


def _http1_alone(listener: Listener, view: View) -> Iterator[Diagnostic]:
    """Report that a listener does not accept HTTP/2, because its limits would have no effect on HTTP/2 requests."""
    if listener.http2 and view.proxy.version >= _WAITS_FOR_NO_STREAM and _loses_bodies(listener, view):
        feature = "listener.max_body" if listener.max_body is not None else "listener.inspect"
        path = ("listeners", listener.name, feature.partition(".")[2])
        message = (
            "as of 3.3, HAProxy does not wait for HTTP/2 bodies without a length: this listener accepts only HTTP/1.1"
        )
        hint = "use HAProxy 3.2, or a listener without max_body whose routes read no bodies"
        yield Diagnostic(BY_ID[feature].code, message, path=path, hint=hint, severity="warning")


def _bind(listener: Listener, *, accepts_http2: bool = True) -> Token:
    path = ("listeners", listener.name, "bind")
    return line(
        "bind",
        quote.address(listener.bind, path),
        "accept-proxy" if listener.proxy_protocol else "",
        *_tls(listener, accepts_http2=accepts_http2 and listener.http2),
        "" if accepts_http2 else "proto h1",
    )


def _tls(listener: Listener, *, accepts_http2: bool) -> Iterator[str | Token]:
    if listener.tls is None:
        return
    yield "ssl"
    for item in listener.tls.certificates:
        yield "crt"
        yield quote.word(item.certificate)
    yield f"ssl-min-ver TLSv{listener.tls.min_version}"
    yield "alpn h2,http/1.1" if accepts_http2 else "alpn http/1.1"
    if listener.tls.client_ca:
        yield "ca-file"
        yield quote.word(listener.tls.client_ca)
        yield f"verify {listener.tls.client_certificate}"
    if listener.tls.client_crl:
        yield "crl-file"
        yield quote.word(listener.tls.client_crl)


def _options(listener: Listener, routes: list[Route]) -> Iterator[Token]:
    path = ("listeners", listener.name, "timeouts")
    if listener.max_connections is not None:
        yield line("maxconn", listener.max_connections, source=("listeners", listener.name, "max_connections"))
    if not listener.http2 and listener.tls is None:
        yield line("option disable-h2-upgrade", source=("listeners", listener.name, "http2"))
    idles = [item.idle_timeout for item in routes if isinstance(item.action, Forward)]
    limited = [item for item in idles if item is not None]
    yield line("timeout client", duration(max(limited, default=60_000) if len(limited) == len(idles) else None))
    yield line("timeout http-request", duration(listener.request_headers_timeout), source=(*path, "request_headers"))
    yield line("timeout http-keep-alive", duration(listener.idle_timeout), source=(*path, "idle"))


def _pools(item: Route) -> tuple[str, ...]:
    return item.action.pools if isinstance(item.action, Forward) else ()


def _forged_headers(listener: Listener, view: View) -> Iterator[Token]:
    """Yield the lines that remove headers that only the gateway may set from every request."""
    names = set(client_identity.given(view.routes.values()))
    if not _upgrades(listener, view):
        names |= {"connection", "upgrade"}
    if listener.client_address is None:
        expression = client_identity.forged_claims(names)
    else:
        expression = client_identity.forgeries({*names, *listener.client_address.forward})
    for each in (expression, *client_identity.lookalikes(view.routes.values())):
        yield line("http-request del-header", quote.word(each), "-m reg")


def _unasked_upgrade(routes: Iterable[Route]) -> Iterator[Token]:
    """Yield the line that rejects a protocol change by a replica that did not receive an upgrade request.

    HAProxy would open a tunnel for every client that sent `upgrade`, even though the replica does not get that header.
    """
    if any(isinstance(item.action, Forward) for item in routes):
        asked = "!{ var(txn.upgraded) -m bool }" if any(item.websocket for item in routes) else ""
        yield line("http-response deny deny_status 502 if { status 101 }", asked)


def _upgrades(listener: Listener, view: View) -> bool:
    """Return whether requests for another protocol are marked after the first rules have run."""
    routes = (view.routes[rule.route] for rule in listener.rules)
    return (
        any(item.websocket for item in routes) or listener.max_body is not None or bodies.reads_bodies(listener, view)
    )


def _address_headers(listener: Listener) -> Iterator[Token]:
    """Yield the lines that send the client's address to replicas.

    These lines follow the lines that determine the client's address from trusted peers.
    """
    path = ("listeners", listener.name, "client_address", "forward")
    for name in listener.address_headers:
        yield line("http-request set-header", quote.word(name), "'%[src]'", source=path)


def _client(settings: ClientAddress | None) -> Iterator[Token]:
    """Yield the lines that determine the client's address, and remove address headers from untrusted peers.

    The header is read from its end: the last address was added by the trusted peer itself, and each earlier one is used
    only if the one after it is also trusted. At most four consecutive load balancers are considered.
    """
    if settings is None:
        return
    yield line("http-request set-var(txn.peer) src")
    networks = [quote.word(item) for item in settings.trusted]
    yield line("acl trusted src --", *networks)
    yield line("http-request set-var(txn.trusted) bool(true) if trusted")
    for position in range(1, 5):
        address = quote.word(quote.sample("req.hdr_ip", settings.header, place=-position))
        yield line("http-request set-src", address, "if trusted {", address, "-m found }")
    yield line("acl believed var(txn.trusted) -m bool")
    yield line("http-request del-header", quote.word(client_identity.claims([settings.header])), "-m reg if !believed")


def _request_id(listener: Listener) -> Iterator[Token]:
    header = quote.word(listener.request_id, ("listeners", listener.name, "request_id"))
    fetch = quote.word(quote.sample("req.fhdr", listener.request_id))
    if listener.client_address:
        acceptable = r"-m reg '^[!#-\[\]-~]{1,200}$'"
        count = quote.word(quote.sample("req.fhdr_cnt", listener.request_id))
        unfit = line("!believed || !{", fetch, acceptable, "} || {", count, "gt 1 }")
        yield line("http-request set-header", header, "%[uuid()] if", unfit)
    else:
        yield line("http-request set-header", header, "%[uuid()]")
    yield line("http-request set-var(txn.request_id)", fetch)
    yield line("http-after-response set-header", header, "'%[var(txn.request_id)]' if { var(txn.request_id) -m found }")


def _body_limit(listener: Listener, view: View) -> Iterator[Token]:
    """Yield the lines that enforce `max_body`.

    A body without a length is read completely first, because it cannot be measured in transit. A body that fills the
    buffer may be endless, so it must have a length.
    """
    if listener.max_body is None:
        return
    path, maximum, held = ("listeners", listener.name, "max_body"), listener.max_body, process.buffer(view) - _SPARE
    refuse = f"http-request return status 413 {_TOO_LARGE} if"
    yield line(refuse, f"{{ req.hdr_val(content-length) gt {maximum} }}", source=path)
    without_length = "!{ req.hdr(content-length) -m found }"
    at_least = min(maximum, held) + 1
    wait = f"http-request wait-for-body time {quote.FOREVER}ms at-least {at_least} if {without_length}"
    yield line(wait, "{ req.hdr(transfer-encoding) -m found }", source=path)
    yield line(wait, "{ req.ver -m beg 2 } !{ req.hdr(upgrade) -m found }", source=path)
    yield line("http-request set-var(txn.headers) req.hdrs,length if", without_length, source=path)
    yield line(refuse, without_length, f"{{ req.body_size gt {maximum} }}", source=path)
    fills_buffer = f"{{ req.body_size gt 0 }} {{ req.body_size,add(txn.headers) gt {held} }}"
    yield line(f"http-request return status 411 {_NO_LENGTH} if", without_length, fills_buffer, source=path)


def _model(listener: Listener, view: View, acls: Acls) -> Iterator[Token]:
    """Yield the lines that set txn.model from the `x-model` header, or else from `model` in the body or a GET's query.

    A body is buffered, for as long as the client keeps sending, only if its model may make the request match a rule.
    gRPC calls are not buffered, unless protection depends on the model.
    """
    if not by_model(listener):
        return
    yield line("http-request set-var(txn.model) req.fhdr(x-model)")
    read = tuple(_reads_model(listener, acls))
    yield from read
    reads = "{ var(txn.reads_model) -m found }" if read else ""
    streams = "" if wants_clear_model(listener) else "!{ req.hdr(content-type) -m beg -i application/grpc }"
    yield from bodies.wait(reads, streams, source=("listeners", listener.name, "inspect"))
    if wants_clear_model(listener):
        yield from models.lines(listener, process.buffer(view) - _SPARE)
    without_model = "!{ var(txn.model) -m found }"
    for body, condition in bodies.READINGS:
        fetch = quote.word(f"{body},json_query('$.model')")
        yield line("http-request set-var(txn.model)", fetch, "if", reads, without_model, condition)
    query = quote.word("url_param(model),url_dec(1)")
    yield line("http-request set-var(txn.model)", query, "if { method GET }", without_model)
    model_json = Token("'\"%[var(txn.model),json(utf8s)]\"'")
    yield line("http-request set-var-fmt(txn.model_json)", model_json, "if { var(txn.model) -m found }")


def _unrouted(listener: Listener, routes: Iterable[Route], view: View, acls: Acls) -> Iterator[Token]:
    """Yield the lines that respond to a request without a route."""
    yield from access.unrouted(listener, acls)
    if any(view.pools[name].protocol == "grpc" for item in routes for name in _pools(item)):
        is_grpc = "{ req.hdr(content-type) -m beg -i application/grpc }"
        yield line("http-request return status 404 hdr grpc-status 12 if !routed", is_grpc)
    yield from _no_model(listener, acls)
    yield line(f"http-request return status 404 {NO_ROUTE} if !routed")


def _no_model(listener: Listener, acls: Acls) -> Iterator[Token]:
    """Yield the lines that respond to requests that would match a rule if they named a different model."""
    if not by_model(listener):
        return
    decides = "{ var(txn.reads_model) -m found }" if any(_reads_model(listener, acls)) else ""
    is_named = "{ var(txn.model),length gt 0 }"
    for body, condition in ((UNKNOWN_MODEL, is_named), (NO_MODEL, "")):
        yield line(f"http-request return status 404 {quote.json_answer(body)} if !routed", decides, condition)


def _reads_model(listener: Listener, acls: Acls) -> Iterator[Token]:
    """Yield the lines that mark requests whose route may depend on the model; none if this applies to all requests."""
    conditions = list(dict.fromkeys(conditions_but_model(rule, acls) for rule in listener.rules if rule.models))
    if () in conditions:
        return
    for each in conditions:
        yield line("http-request set-var(txn.reads_model) bool(true) if", *each)


def _route_acl(item: Route) -> Token:
    name = quote.name(item.name).text
    return line(f"acl route_{name} var(txn.route) -m str -- {name}")


def _actions(item: Route, listener: Listener, view: View, acls: Acls) -> Iterator[Token]:
    if not item.logged:
        yield line(logs.UNLOGGED, f"if {route.acl(item)}", source=("routes", item.name, "access_log"))
    yield from access.lines(item, listener, acls)
    if not isinstance(item.action, Forward):
        if item.needs_credentials:
            yield from auth.lines(item, view, acls)
        yield from route.own_response(item, item.action, listener, view)
        return
    if len(item.rate_limits) > limits.COUNTERS:
        yield from route.own_response(item, CLOSED, listener, view)
        return
    yield from auth.lines(item, view, acls)
    yield from limits.lines(item, view.proxy)
    yield from pool_selection.pools(
        item, item.action, view, acls, alone=pool_selection.only_route(listener) is not None
    )
    yield from hash_vars.lines(item, view)
    yield from pick.lines(item, listener, view)
    yield from auth.credential_removal(item)
    yield from route.request_changes(item, listener, view, upgrades=_upgrades(listener, view))

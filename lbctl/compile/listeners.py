"""Resolves listeners, each with its table of rules.

Each host of a route has one rule, in the order of `ir.matching.order`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from lbctl.compile.context import Context
from lbctl.compile.convert import address, as_int, maybe, networks, pairs, prefix
from lbctl.ir import listeners as ir
from lbctl.ir.matching import order
from lbctl.model import listener as model
from lbctl.model.route import Match, Route


def listeners(ctx: Context) -> tuple[ir.Listener, ...]:
    """Resolve all listeners. Reports LB112, LB116 and LB142."""
    tables = _tables(ctx)
    _check_revocation_lists(ctx)
    _check_binds(ctx)
    return tuple(_listener(name, listener, tables[name]) for name, listener in sorted(ctx.fleet.listeners.items()))


def _tables(ctx: Context) -> dict[str, tuple[ir.Rule, ...]]:
    rules_by_listener: dict[str, list[ir.Rule]] = {name: [] for name in ctx.fleet.listeners}
    for name, route in sorted(ctx.fleet.routes.items()):
        rules = _rules_of(name, route)
        for listener in route.listeners if route.listeners is not None else rules_by_listener:
            if listener in rules_by_listener:
                rules_by_listener[listener].extend(rules)
    tables = {name: tuple(sorted(set(unsorted), key=order)) for name, unsorted in rules_by_listener.items()}
    for table in tables.values():
        _check_shadowed(ctx, table)
    return tables


def _check_shadowed(ctx: Context, rules: tuple[ir.Rule, ...]) -> None:
    """Report adjacent rules with equal conditions, because the later rule never matches a request."""
    for first, second in pairwise(rules):
        if first.path == second.path and replace(second, route=first.route) == first:
            message = (
                f"route {first.route} matches the same requests and takes precedence, because its name comes first"
            )
            ctx.warn("LB116", message, ("routes", second.route, "match"), "make one of the two routes more specific")


def _check_binds(ctx: Context) -> None:
    first: dict[str, str] = {}
    for name, listener in ctx.fleet.listeners.items():
        bind = str(address(listener.bind))
        if first.setdefault(bind, name) != name:
            ctx.error("LB112", f"{bind} is already the address of listener {first[bind]}", ("listeners", name, "bind"))


def _check_revocation_lists(ctx: Context) -> None:
    asked = {("listeners", name, "tls"): listener.tls for name, listener in ctx.fleet.listeners.items()}
    for path, tls in {**asked, ("control", "xds", "tls"): ctx.fleet.control.xds.tls}.items():
        if tls is not None and tls.client_crl is not None and tls.client_ca is None:
            message = "revocation lists have no effect, because this listener does not request client certificates"
            ctx.error("LB142", message, (*path, "client_crl"), "set client_ca: FILE")


def _listener(name: str, listener: model.Listener, rules: tuple[ir.Rule, ...]) -> ir.Listener:
    return ir.Listener(
        name=name,
        bind=address(listener.bind),
        tls=maybe(listener.tls, _tls),
        http2=listener.http2,
        client_address=maybe(listener.client_address, _client_address),
        allow_from=networks(listener.allow_from),
        deny_from=networks(listener.deny_from) or (),
        proxy_protocol=listener.proxy_protocol,
        max_connections=listener.max_connections,
        max_body=as_int(listener.max_body),
        max_header_count=listener.headers.max_count,
        max_header_bytes=int(listener.headers.max_bytes),
        inspect=int(listener.inspect),
        request_headers_timeout=int(listener.timeouts.request_headers),
        idle_timeout=int(listener.timeouts.idle),
        access_log=ir.AccessLog(listener.access_log.path, listener.access_log.format),
        tracing=maybe(
            listener.tracing, lambda tracing: ir.Tracing(address(tracing.otlp), float(tracing.sample), tracing.service)
        ),
        request_id=listener.request_id,
        rules=rules,
    )


def _client_address(section: model.ClientAddress) -> ir.ClientAddress:
    return ir.ClientAddress(
        trusted=tuple(sorted(set(section.trusted))),
        header=section.header,
        forward=tuple(sorted(set(section.forward))),
    )


def _tls(section: model.ListenerTls) -> ir.ListenerTls:
    return ir.ListenerTls(
        certificates=tuple(
            ir.Certificate(certificate.certificate, certificate.key, tuple(sorted(set(certificate.hosts))))
            for certificate in section.certificates
        ),
        min_version=section.min_version,
        client_ca=section.client_ca,
        client_certificate=section.client_certificate,
        client_crl=section.client_crl,
    )


def _rules_of(name: str, route: Route) -> list[ir.Rule]:
    """Return one rule per host of the route."""
    match = route.match
    return [
        ir.Rule(
            route=name,
            host=host,
            path=_path(match),
            methods=tuple(sorted(set(match.methods))),
            headers=pairs(match.headers),
            models=tuple(sorted(set(match.model))),
        )
        for host in sorted(set(match.hosts)) or [""]
    ]


def _path(match: Match) -> ir.PathMatch:
    if match.path is not None:
        return ir.PathMatch("exact", match.path)
    if match.path_regex is not None:
        return ir.PathMatch("regex", match.path_regex)
    return ir.PathMatch("prefix", prefix(match.path_prefix or "/"))

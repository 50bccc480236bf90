"""Listeners, each with its table of rules."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from lbctl.compile.context import Context
from lbctl.compile.convert import address, maybe, whole
from lbctl.compile.precedence import rules_of
from lbctl.ir import listeners as ir
from lbctl.ir.matching import order
from lbctl.model import listener as model


def listeners(ctx: Context) -> tuple[ir.Listener, ...]:
    tables = _tables(ctx)
    _check_binds(ctx)
    return tuple(_listener(name, item, tables[name]) for name, item in sorted(ctx.fleet.listeners.items()))


def _tables(ctx: Context) -> dict[str, tuple[ir.Rule, ...]]:
    rows: dict[str, list[ir.Rule]] = {name: [] for name in ctx.fleet.listeners}
    for name, route in sorted(ctx.fleet.routes.items()):
        rules = rules_of(name, route)
        for listener in route.listeners if route.listeners is not None else rows:
            if listener in rows:
                rows[listener].extend(rules)
    tables = {name: tuple(sorted(set(found), key=order)) for name, found in rows.items()}
    for table in tables.values():
        _check_shadowed(ctx, table)
    return tables


def _check_shadowed(ctx: Context, rules: tuple[ir.Rule, ...]) -> None:
    """Rules of the same conditions stand beside each other: the later route never gets a request by it."""
    for first, second in pairwise(rules):
        if replace(second, route=first.route) == first:
            message = f"route {first.route} matches the same requests and comes first by its name"
            ctx.warn("LB116", message, ("routes", second.route, "match"), "make one of the two more specific")


def _check_binds(ctx: Context) -> None:
    first: dict[str, str] = {}
    for name, listener in ctx.fleet.listeners.items():
        bind = str(address(listener.bind))
        if first.setdefault(bind, name) != name:
            ctx.error("LB112", f"{bind} is already the address of listener {first[bind]}", ("listeners", name, "bind"))


def _listener(name: str, item: model.Listener, rules: tuple[ir.Rule, ...]) -> ir.Listener:
    return ir.Listener(
        name=name,
        bind=address(item.bind),
        tls=maybe(item.tls, _tls),
        http2=item.http2,
        client_address=maybe(
            item.client_address, lambda told: ir.ClientAddress(tuple(sorted(set(told.trusted))), told.header)
        ),
        proxy_protocol=item.proxy_protocol,
        max_connections=item.max_connections,
        max_body=whole(item.max_body),
        inspect=int(item.inspect),
        request_headers_timeout=int(item.timeouts.request_headers),
        idle_timeout=int(item.timeouts.idle),
        access_log=ir.AccessLog(item.access_log.path, item.access_log.format),
        tracing=maybe(item.tracing, lambda told: ir.Tracing(address(told.otlp), float(told.sample), told.service)),
        request_id=item.request_id,
        rules=rules,
    )


def _tls(section: model.ListenerTls) -> ir.ListenerTls:
    return ir.ListenerTls(
        certificates=tuple(
            ir.Certificate(item.certificate, item.key, tuple(sorted(set(item.hosts)))) for item in section.certificates
        ),
        min_version=section.min_version,
        client_ca=section.client_ca,
        client_certificate=section.client_certificate,
    )

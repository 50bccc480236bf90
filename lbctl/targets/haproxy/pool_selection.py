"""Selects the pool and backend of a request: by a pin, a sticky client's variant, a draw or the fallback.

If a listener treats all requests alike, the route, pool and backend are known in advance. In this case nothing is
looked up, and a variable is set only if something reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lbctl.ir.listeners import Listener, Rule
from lbctl.ir.routes import Forward, Pin, Route, StickySplit
from lbctl.ir.snapshot import View
from lbctl.targets.haproxy import limits, locality_tiers, quote, residency, sections
from lbctl.targets.haproxy.match import Acls, equals
from lbctl.targets.haproxy.quote import line
from lbctl.targets.token import Token

ROUTE, POOL = "txn.route", "txn.pool"
_BACKEND = "txn.backend"


@dataclass(frozen=True, slots=True)
class Destination:
    """The route and pool lines that surround the routes' own lines."""

    route: Token
    """Line that saves the chosen route for the access log."""
    pool: Token
    """Line that saves the chosen pool for the access log."""
    backend: tuple[Token, ...]
    """Lines that choose the backend."""


def pools(route: Route, action: Forward, view: View, acls: Acls, *, alone: bool) -> Iterator[Token]:
    """Yield the lines that set txn.pool for this route, and txn.variant if the route has a split.

    `alone`: this is the listener's only route and matches every request.
    """
    route_acl = f"route_{quote.name(route.name).text}"
    for pin in action.pins:
        path = ("routes", route.name, "pin")
        yield line(_set_pool(pin.pool), "if", route_acl, "!chosen", _pin(pin, acls), source=path)
    active = [share for share in action.shares if share.weight > 0]
    if len(active) == 1:
        condition = "" if alone and not action.pins else f"if {route_acl} !chosen"
        yield line(_set_pool(active[0].pool), condition, source=("routes", route.name))
    else:
        yield from _split(route, action, route_acl, acls)
    if action.fallback:
        yield from _fallback(route, action, view, route_acl)
    if route.regions:
        yield from _regional_backend(route, action, view, route_acl)
    for pool in action.pools:
        yield from _nearest_tier(route, pool, view, route_acl)
        if view.pools[pool].fail_open:
            yield _opened(route, pool, view, route_acl)
    if len(action.shares) > 1:
        yield from _variants(action, view, route_acl)


def _set_pool(pool: str) -> str:
    return f"http-request set-var(txn.pool) str({quote.name(pool).text})"


def _pin(pin: Pin, acls: Acls) -> str:
    return equals(acls, quote.sample("req.fhdr" if pin.kind == "header" else "req.cook", pin.name), pin.value)


def _split(route: Route, action: Forward, route_acl: str, acls: Acls) -> Iterator[Token]:
    path = ("routes", route.name, "split")
    active = [share for share in action.shares if share.weight > 0]
    total = sum(share.weight for share in active)
    if action.sticky:
        yield from _sticky(route, action.sticky, [share.pool for share in active], total, route_acl, acls)
    yield line(f"http-request set-var(txn.draw) rand({total}) if", route_acl, "!chosen !drawn", source=path)
    threshold = 0
    for share in active:
        threshold += share.weight
        yield line(
            _set_pool(share.pool), "if", route_acl, f"!chosen {{ var(txn.draw) -m int lt {threshold} }}", source=path
        )
    if action.sticky and action.sticky.kind == "cookie":
        yield line("http-request set-var(txn.given) var(txn.pool) if", _is_new_client(route), source=path)


def _sticky(
    route: Route, sticky: StickySplit, active: list[str], total: int, route_acl: str, acls: Acls
) -> Iterator[Token]:
    """Yield the lines that keep a client on its variant.

    A cookie contains the pool's name. A header needs no storage, because its hash replaces the draw.
    """
    path = ("routes", route.name, "sticky_split")
    if sticky.kind == "header":
        drawn = quote.word(quote.sample("req.fhdr", sticky.name, "djb2(1)", f"mod({total})"))
        yield line("http-request set-var(txn.draw)", drawn, "if", route_acl, "!chosen", source=path)
        return
    cookie = quote.sample("req.cook", sticky.name)
    for pool in active:
        yield line(_set_pool(pool), "if", route_acl, "!chosen", equals(acls, cookie, pool), source=path)
    yield line(f"http-request set-var(txn.fresh) str({route.name}) if", route_acl, "!chosen", source=path)


def cookies(route: Route, action: Forward, *, secure: bool) -> Iterator[Token]:
    """Yield the lines that add a cookie with the client's variant to the response."""
    if action.sticky and action.sticky.kind == "cookie":
        cookie = action.sticky.name.replace("%", "%%")
        value = f"{cookie}=%[var(txn.given)]; Path=/; Max-Age={max(1, action.sticky.ttl // 1000)}"
        value += "; HttpOnly; SameSite=Lax" + ("; Secure" if secure else "")
        path = ("routes", route.name, "sticky_split")
        add_header = "http-after-response add-header set-cookie"
        yield line(add_header, quote.word(value), "if", _is_new_client(route), source=path)


def _is_new_client(route: Route) -> str:
    return f"{{ var(txn.fresh) -m str -- {quote.name(route.name).text} }}"


def _regional_backend(route: Route, action: Forward, view: View, route_acl: str) -> Iterator[Token]:
    """Yield the lines that set the chosen pool's backend that this route may use."""
    for pool in action.pools:
        backend = residency.backend_name(view.pools[pool], route.regions)
        if backend != pool:
            condition = f"{{ var(txn.pool) -m str -- {quote.name(pool).text} }}"
            path = ("routes", route.name, "regions")
            yield line(f"http-request set-var(txn.backend) str({backend}) if", route_acl, condition, source=path)


def _nearest_tier(route: Route, pool: str, view: View, route_acl: str) -> Iterator[Token]:
    """Yield the lines that choose the tier of the pool.

    The nearest tier's line comes last and therefore overrides the others.
    """
    backend = residency.backend_name(view.pools[pool], route.regions)
    pool_in_regions, view_in_regions = residency.within(view.pools[pool], route.regions, view)
    tiers = locality_tiers.parts(pool_in_regions, view_in_regions, backend)[:-1]
    is_pool, path = f"{{ var(txn.pool) -m str -- {quote.name(pool).text} }}", ("pools", pool, "locality")
    for position, tier in reversed(list(enumerate(tiers))):
        fit_servers = f"nbsrv({sections.pool(tier.name, view.proxy)})"
        if position:
            fit_in_nearer = f"nbsrv({sections.pool(tiers[position - 1].name, view.proxy)})"
            yield line(f"http-request set-var(txn.nearer) {fit_in_nearer} if", route_acl, is_pool, source=path)
            fit_servers += ",sub(txn.nearer)"
        fit_servers, needed = limits.fit_compared(fit_servers, tier.name, tier.min_fit, view)
        set_backend = f"http-request set-var(txn.backend) str({tier.name}) if"
        yield line(set_backend, route_acl, is_pool, f"{{ {fit_servers} ge {needed} }}", source=path)


def _opened(route: Route, pool: str, view: View, route_acl: str) -> Token:
    """Yield the line that chooses the backend without checks if no replica of the pool is up."""
    backend = residency.backend_name(view.pools[pool], route.regions)
    return line(
        f"http-request set-var(txn.backend) str({locality_tiers.open_name(backend)}) if",
        route_acl,
        f"{{ var(txn.pool) -m str -- {quote.name(pool).text} }} {{ nbsrv({sections.pool(backend, view.proxy)}) lt 1 }}",
        source=("pools", pool, "health", "fail_open"),
    )


def _fallback(route: Route, action: Forward, view: View, route_acl: str) -> Iterator[Token]:
    for pool in action.pools:
        if pool != action.fallback:
            name = quote.name(pool).text
            backend = residency.backend_name(view.pools[pool], route.regions)
            yield line(
                _set_pool(action.fallback or ""),
                "if",
                route_acl,
                f"{{ var(txn.pool) -m str -- {name} }} {{ nbsrv({sections.pool(backend, view.proxy)}) lt 1 }}",
                source=("routes", route.name, "fallback"),
            )


def _variants(action: Forward, view: View, route_acl: str) -> Iterator[Token]:
    for pool in action.pools:
        model = view.pools[pool].model
        label = json.dumps((model and model.version) or pool)
        condition = f"{{ var(txn.pool) -m str -- {quote.name(pool).text} }}"
        yield line("http-request set-var-fmt(txn.variant)", quote.formatted(label), "if", route_acl, condition)


def only_route(listener: Listener) -> str | None:
    """Return the route that matches every request of the listener, if there is no other rule."""
    if len(listener.rules) != 1 or listener.rules[0] != Rule(listener.rules[0].route):
        return None
    return listener.rules[0].route


def only_pool(route: Route) -> str | None:
    """Return the pool that receives all requests of the route, or None if it differs between requests."""
    action = route.action
    if not isinstance(action, Forward) or action.pins or action.fallback:
        return None
    active = [share.pool for share in action.shares if share.weight > 0]
    return active[0] if len(active) == 1 else None


def destination(listener: Listener, view: View, lines: Sequence[Token]) -> Destination:
    """Return the destination lines of a listener, given its other `lines`."""
    route = only_route(listener)
    pool = only_pool(view.routes[route]) if route else None
    chosen = any(item.sets == _BACKEND for item in lines)
    return Destination(_logged(ROUTE, route), _logged(POOL, pool), tuple(_backends(view, pool, chosen=chosen)))


def _logged(variable: str, name: str | None) -> Token:
    text = f"%[var({variable})]" if name is None else quote.name(name).text
    return line(f"http-request set-var-fmt({variable}_json) '\"{text}\"'")


def _backends(view: View, pool: str | None, *, chosen: bool) -> Iterator[Token]:
    prefix = sections.own("pool_", view.proxy)
    if chosen:
        yield line(f"use_backend {prefix}%[var({_BACKEND})] if {{ var({_BACKEND}) -m found }}")
    if pool is None:
        yield line(f"use_backend {prefix}%[var({POOL})]")
    else:
        yield line("default_backend", sections.pool(pool, view.proxy))

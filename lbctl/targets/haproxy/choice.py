"""Which pool a request goes to: pins, then what a sticky client was given, then the draw, then the fallback."""

from __future__ import annotations

import json
from collections.abc import Iterator

from lbctl.ir.routes import Forward, Pin, Route, StickySplit
from lbctl.ir.snapshot import View
from lbctl.targets.haproxy import locality_tiers, quote, residency
from lbctl.targets.haproxy.match import Acls, equals
from lbctl.targets.token import Token


def pools(route: Route, action: Forward, view: View, acls: Acls) -> Iterator[Token]:
    """Lines that set txn.pool for this route, and txn.variant where the route has a split."""
    here = f"route_{quote.name(route.name).text}"
    for pin in action.pins:
        path = ("routes", route.name, "pin")
        yield quote.line(_to(pin.pool), "if", here, "!chosen", _pin(pin, acls), source=path)
    live = [share for share in action.shares if share.weight > 0]
    if len(live) == 1:
        yield quote.line(_to(live[0].pool), "if", here, "!chosen", source=("routes", route.name))
    else:
        yield from _split(route, action, here, acls)
    if action.fallback:
        yield from _fallback(route, action, view, here)
    if route.regions:
        yield from _resident(route, action, view, here)
    for pool in action.pools:
        yield from _nearest(route, pool, view, here)
    if len(action.shares) > 1:
        yield from _variants(action, view, here)


def _to(pool: str) -> str:
    return f"http-request set-var(txn.pool) str({quote.name(pool).text})"


def _pin(pin: Pin, acls: Acls) -> str:
    return equals(acls, quote.sample("req.fhdr" if pin.kind == "header" else "req.cook", pin.name), pin.value)


def _split(route: Route, action: Forward, here: str, acls: Acls) -> Iterator[Token]:
    path = ("routes", route.name, "split")
    live = [share for share in action.shares if share.weight > 0]
    total = sum(share.weight for share in live)
    if action.sticky:
        yield from _sticky(route, action.sticky, [share.pool for share in live], total, here, acls)
    yield quote.line(f"http-request set-var(txn.draw) rand({total}) if", here, "!chosen !drawn", source=path)
    threshold = 0
    for share in live:
        threshold += share.weight
        yield quote.line(_to(share.pool), "if", here, f"!chosen {{ var(txn.draw) -m int lt {threshold} }}", source=path)
    if action.sticky and action.sticky.kind == "cookie":
        yield quote.line("http-request set-var(txn.given) var(txn.pool) if", _fresh(route), source=path)


def _sticky(route: Route, sticky: StickySplit, live: list[str], total: int, here: str, acls: Acls) -> Iterator[Token]:
    """A cookie holds the pool's name; a header is its own memory: its hash is the draw."""
    path = ("routes", route.name, "sticky_split")
    if sticky.kind == "header":
        drawn = quote.word(quote.sample("req.fhdr", sticky.name, "djb2(1)", f"mod({total})"))
        yield quote.line("http-request set-var(txn.draw)", drawn, "if", here, "!chosen", source=path)
        return
    cookie = quote.sample("req.cook", sticky.name)
    for pool in live:
        yield quote.line(_to(pool), "if", here, "!chosen", equals(acls, cookie, pool), source=path)
    yield quote.line(f"http-request set-var(txn.fresh) str({route.name}) if", here, "!chosen", source=path)


def cookies(route: Route, action: Forward, *, secure: bool) -> Iterator[Token]:
    """The answer tells the client which variant it was given."""
    if action.sticky and action.sticky.kind == "cookie":
        cookie = action.sticky.name.replace("%", "%%")
        value = f"{cookie}=%[var(txn.given)]; Path=/; Max-Age={max(1, action.sticky.ttl // 1000)}"
        value += "; HttpOnly; SameSite=Lax" + ("; Secure" if secure else "")
        path = ("routes", route.name, "sticky_split")
        added = "http-after-response add-header set-cookie"
        yield quote.line(added, quote.word(value), "if", _fresh(route), source=path)


def _fresh(route: Route) -> str:
    return f"{{ var(txn.fresh) -m str -- {quote.name(route.name).text} }}"


def _resident(route: Route, action: Forward, view: View, here: str) -> Iterator[Token]:
    """After the pool is known: which backend of it this route may reach."""
    for pool in action.pools:
        backend = residency.backend_name(view.pools[pool], route.regions)
        if backend != pool:
            condition = f"{{ var(txn.pool) -m str -- {quote.name(pool).text} }}"
            path = ("routes", route.name, "regions")
            yield quote.line(f"http-request set-var(txn.backend) str({backend}) if", here, condition, source=path)


def _nearest(route: Route, pool: str, view: View, here: str) -> Iterator[Token]:
    """Which part of the pool serves. The nearest stands last, and so has the last word."""
    backend = residency.backend_name(view.pools[pool], route.regions)
    known, within = residency.within(view.pools[pool], route.regions, view)
    parts = locality_tiers.parts(known, within, backend)[:-1]
    this, path = f"{{ var(txn.pool) -m str -- {quote.name(pool).text} }}", ("pools", pool, "locality")
    for place, part in reversed(list(enumerate(parts))):
        fit = f"nbsrv(pool_{part.name})"
        if place:
            nearer = f"nbsrv(pool_{parts[place - 1].name})"
            yield quote.line(f"http-request set-var(txn.nearer) {nearer} if", here, this, source=path)
            fit += ",sub(txn.nearer)"
        chosen = f"http-request set-var(txn.backend) str({part.name}) if"
        yield quote.line(chosen, here, this, f"{{ {fit} ge {part.least} }}", source=path)


def _fallback(route: Route, action: Forward, view: View, here: str) -> Iterator[Token]:
    for pool in action.pools:
        if pool != action.fallback:
            known = quote.name(pool).text
            backend = residency.backend_name(view.pools[pool], route.regions)
            yield quote.line(
                _to(action.fallback or ""),
                "if",
                here,
                f"{{ var(txn.pool) -m str -- {known} }} {{ nbsrv(pool_{backend}) lt 1 }}",
                source=("routes", route.name, "fallback"),
            )


def _variants(action: Forward, view: View, here: str) -> Iterator[Token]:
    for pool in action.pools:
        model = view.pools[pool].model
        label = json.dumps((model and model.version) or pool)
        condition = f"{{ var(txn.pool) -m str -- {quote.name(pool).text} }}"
        yield quote.line("http-request set-var-fmt(txn.variant)", quote.formatted(label), "if", here, condition)

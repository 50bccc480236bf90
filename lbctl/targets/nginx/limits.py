"""Rate limits and limits of requests at once, as zones of shared memory.

An empty key is not limited by nginx at all; every key here begins with a word of ours, so that requests without the
header share one bucket instead of having none.
"""

from __future__ import annotations

from lbctl.ir.pools import Pool
from lbctl.ir.routes import RateLimit, Route
from lbctl.targets.nginx import auth, names, quote
from lbctl.targets.nginx.blocks import Limit, Zone
from lbctl.targets.nginx.render_context import RenderContext
from lbctl.targets.token import Token

_MINUTE = 60_000
_PER_CLIENT = 10 * 1024
_ONE = 64


def of_route(book: RenderContext, route: Route, number: int) -> tuple[Limit, ...]:
    """The route's limits in the order of the YAML; their zones are shared by all of its locations."""
    zones = (f"lb_r{number}_limit{index}" for index in range(len(route.rate_limits)))
    return tuple(_limit(book, route, number, name, item) for name, item in zip(zones, route.rate_limits, strict=True))


def uncountable(book: RenderContext, route: Route) -> bool:
    """Whether a limit of the route is below the one request a minute that nginx counts in."""
    found = any(limit.requests and limit.requests * _MINUTE < limit.per for limit in route.rate_limits)
    if found:
        path = ("routes", route.name, "rate_limit")
        message = "nginx knows no rate below one request a minute: this route answers 503 there"
        book.warn("route.rate_limit", path, message, "60/h or more for each nginx")
    return found


def breaker(book: RenderContext, pool: Pool) -> Limit:
    """Requests at once to a pool, by all routes together; nginx has no queue, so beyond them is 503."""
    name = Token(f"lb_pool_{pool.name}")
    limits = pool.circuit_breaker
    most = min(limits.max_connections, limits.max_requests) if pool.protocol == "http1" else limits.max_requests
    if all(zone.name != name for zone in book.zones):
        book.zones.append(Zone(Token('"all"'), name, _ONE))
    return Limit(name, most=most)


def listener(book: RenderContext, number: int, most: int) -> Limit:
    """Requests at once on a listener."""
    name = Token(f"lb_l{number}")
    if all(zone.name != name for zone in book.zones):
        book.zones.append(Zone(Token('"all"'), name, _ONE))
    return Limit(name, most=most)


def _limit(book: RenderContext, route: Route, number: int, name: str, limit: RateLimit) -> Limit:
    known = any(zone.name == Token(name) for zone in book.zones)
    size = _ONE if limit.by == "all" else _PER_CLIENT
    if limit.concurrent:
        if not known:
            book.zones.append(Zone(_key(book, route, number, limit), Token(name), size))
        return Limit(Token(name), most=limit.concurrent)
    if not known:
        book.zones.append(Zone(_key(book, route, number, limit), Token(name), size, rate=_rate(book, route, limit)))
    return Limit(Token(name), burst=max(0, (limit.burst or limit.requests) - 1))


def _key(book: RenderContext, route: Route, number: int, limit: RateLimit) -> Token:
    if limit.by == "client_ip":
        return Token("$binary_remote_addr")
    known = auth.tenant(book, route, number)
    if limit.by == "tenant" and known is not None:
        return quote.script(f"is:{known.text}")
    if limit.by == "header":
        source = names.header(limit.header)
        if source is not None:
            return quote.script(f"is:{source}")
        path = ("routes", route.name, "rate_limit")
        book.warn("route.rate_limit", path, "nginx drops request headers of that name: all requests share one limit")
    return Token('"all"')


def _rate(book: RenderContext, route: Route, limit: RateLimit) -> Token:
    """Whole requests a second or a minute are what nginx counts in."""
    if limit.requests * 1000 % limit.per == 0:
        return Token(f"{limit.requests * 1000 // limit.per}r/s")
    exact = limit.requests * _MINUTE / limit.per
    whole = int(exact)
    if abs(whole - exact) > exact * 0.02:
        path = ("routes", route.name, "rate_limit")
        book.warn("route.rate_limit", path, f"nginx counts whole requests a minute: {whole} instead of {exact:.2f}")
    return Token(f"{whole}r/m")

"""Rate limits and concurrency limits as shared memory zones.

nginx does not limit requests with an empty key. Every key here begins with a constant prefix, so requests without the
header share one bucket instead of being unlimited.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lbctl.ir.pools import Pool
from lbctl.ir.routes import RateLimit, Route
from lbctl.targets.nginx import auth, names, quote
from lbctl.targets.nginx.blocks import Zone
from lbctl.targets.nginx.location_blocks import Limit
from lbctl.targets.nginx.render_context import RenderContext
from lbctl.targets.token import Token

_MINUTE = 60_000
_PER_CLIENT = 10 * 1024
_ONE = 64
_MAX_CONNECTIONS = 65_535
"""Maximum number that `limit_conn` accepts. Higher limits are reduced to this number."""


def of_route(context: RenderContext, route: Route, number: int) -> tuple[Limit, ...]:
    """Return the route's limits in YAML order. All locations of the route share the zones."""
    zones = (names.own(f"lb_r{number}_limit{index}", context.view.proxy) for index in range(len(route.rate_limits)))
    return tuple(
        limit
        for name, item in zip(zones, route.rate_limits, strict=True)
        for limit in _limits(context, route, number, name, item)
    )


def uncountable(context: RenderContext, route: Route) -> bool:
    """Return whether one of the route's limits is below nginx's minimum of one request per minute.

    In that case, add a warning.
    """
    every = [own for limit in route.rate_limits for own in (limit, *(own for _, own in limit.tenants))]
    too_slow = any(limit.requests and limit.requests * _MINUTE < limit.per for limit in every)
    if too_slow:
        path = ("routes", route.name, "rate_limit")
        message = "nginx does not support rates below one request per minute, so this route returns 503 on nginx"
        context.warn("route.rate_limit", path, message, "set a rate of at least 60/h for each nginx")
    return too_slow


def breaker(context: RenderContext, pool: Pool) -> Limit:
    """Return a pool's concurrency limit, which all routes share.

    nginx has no queue, so requests beyond the limit get 503. nginx also counts the requests that wait at the picker,
    and those that the picker is about to reject because too many wait.
    """
    name = Token(names.own(f"lb_pool_{pool.name}", context.view.proxy))
    if all(zone.name != name for zone in context.zones):
        context.zones.append(Zone(Token('"all"'), name, _ONE))
    queue = pool.balance.queue if context.view.picker is not None else None
    asking = 2 * queue.max_requests if queue is not None else 0
    return Limit(name, maximum=min(most(pool) + asking, _MAX_CONNECTIONS))


def most(pool: Pool) -> int:
    """Return the pool's maximum number of concurrent requests, at most the sum of its replicas' limits.

    Replicas that are also listed as backups have a separate `max_conns` there, which this limit keeps unused.
    """
    limits, each = pool.circuit_breaker, most_of_replica(pool)
    whole = min(limits.max_connections, limits.max_requests) if pool.protocol == "http1" else limits.max_requests
    return whole if each is None or not pool.replicas else min(whole, each * len(pool.replicas))


def most_of_replica(pool: Pool) -> int | None:
    """Return the maximum number of concurrent requests per replica, or None for no limit."""
    breaker = pool.circuit_breaker
    return min(filter(None, (breaker.replica_max_connections, breaker.replica_max_requests)), default=None)


def uncounted(context: RenderContext) -> tuple[Limit, Limit]:
    """Return one limit of each kind that never counts requests, because its key is empty.

    nginx counts a request once per kind, in the first location with such a limit, or else with the limit of the
    enclosing blocks. A location that must leave counting to a later location therefore has these limits.
    """
    rate, connections = (Token(names.own(name, context.view.proxy)) for name in ("lb_uncounted_rate", "lb_uncounted"))
    if all(zone.name != rate for zone in context.zones):
        context.zones.append(Zone(Token('""'), rate, _ONE, Token("1r/s")))
        context.zones.append(Zone(Token('""'), connections, _ONE))
    return Limit(rate, burst=0), Limit(connections, maximum=1)


def listener(context: RenderContext, number: int, maximum: int) -> Limit:
    """Return a listener's concurrency limit."""
    name = Token(names.own(f"lb_l{number}", context.view.proxy))
    if all(zone.name != name for zone in context.zones):
        context.zones.append(Zone(Token('"all"'), name, _ONE))
    return Limit(name, maximum=min(maximum, _MAX_CONNECTIONS))


def _limits(context: RenderContext, route: Route, number: int, name: str, limit: RateLimit) -> Iterator[Limit]:
    """Yield the directives of a limit: the limit itself, and one for each tenant with a separate rate.

    nginx does not count empty keys, so exactly one of them counts each request.
    """
    tenant = auth.tenant(context, route, number)
    size = _ONE if limit.by == "all" else _PER_CLIENT
    if not limit.tenants or tenant is None:
        yield _limit(context, route, name, limit, Zone(_key(context, route, number, limit), Token(name), size))
        return
    exceptions = ((quote.map_key(own_tenant), Token('""')) for own_tenant, _ in limit.tenants)
    others = _map(context, tenant, f"${name}", (Token("default"), quote.script(f"is:{tenant.text}")), *exceptions)
    yield _limit(context, route, name, limit, Zone(others, Token(name), size))
    for index, (own_tenant, own) in enumerate(limit.tenants):
        own_name = f"{name}_{index}"
        key = _map(
            context, tenant, f"${own_name}", (Token("default"), Token('""')), (quote.map_key(own_tenant), Token("1"))
        )
        yield _limit(context, route, own_name, own, Zone(key, Token(own_name), _ONE))


def _map(context: RenderContext, tenant: Token, variable: str, *entries: tuple[Token, Token]) -> Token:
    if not context.has_map(variable):
        context.map(tenant.text, variable, entries)
    return Token(variable)


def _limit(context: RenderContext, route: Route, name: str, limit: RateLimit, zone: Zone) -> Limit:
    is_new = all(item.name != Token(name) for item in context.zones)
    if is_new:
        context.zones.append(zone if limit.concurrent else replace(zone, rate=_rate(context, route, limit)))
    if limit.concurrent:
        return Limit(Token(name), maximum=min(limit.concurrent, _MAX_CONNECTIONS))
    return Limit(Token(name), burst=max(0, (limit.burst or limit.requests) - 1))


def _key(context: RenderContext, route: Route, number: int, limit: RateLimit) -> Token:
    if limit.by == "client_ip":
        return Token("$binary_remote_addr")
    tenant_variable = auth.tenant(context, route, number)
    if limit.by == "tenant" and tenant_variable is not None:
        return quote.script(f"is:{tenant_variable.text}")
    if limit.by == "header":
        source = names.header(limit.header)
        if source is not None:
            return quote.script(f"is:{source}")
        path = ("routes", route.name, "rate_limit")
        context.warn(
            "route.rate_limit", path, "nginx drops request headers with this name, so all requests share one limit"
        )
    return Token('"all"')


def _rate(context: RenderContext, route: Route, limit: RateLimit) -> Token:
    """Return the rate in nginx's units: integer requests per second or minute. Add a warning if it must be rounded."""
    if limit.requests * 1000 % limit.per == 0:
        return Token(f"{limit.requests * 1000 // limit.per}r/s")
    exact = limit.requests * _MINUTE / limit.per
    whole = int(exact)
    if abs(whole - exact) > exact * 0.02:
        path = ("routes", route.name, "rate_limit")
        context.warn(
            "route.rate_limit", path, f"nginx supports only whole requests per minute: {whole} instead of {exact:.2f}"
        )
    return Token(f"{whole}r/m")

"""Limits on requests: a route's rate limits, and a pool's circuit breaker and number of healthy replicas.

Rate limits and concurrency limits of a route are stick tables. HAProxy counts in sliding windows. A window of burst ÷
rate that admits `burst` requests never admits more than the fleet's token bucket, and sustains the same rate. Only
admitted requests count, so a client that keeps retrying is admitted again as soon as its window allows. HAProxy has
three counters per request.

Unless the fleet sets a pool's limits, they follow from the number of replicas. They are the maximum number of
concurrent requests, and the number of healthy replicas that a backend needs in order to serve as the nearest tier, or
not to shed load. If replicas are added and removed through the Runtime API, these limits are process variables, which
that API can change; otherwise they are part of the rules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import RateLimit, Route
from lbctl.ir.snapshot import View
from lbctl.targets.features import BY_ID
from lbctl.targets.haproxy import quote, sections, servers
from lbctl.targets.haproxy.locality_tiers import TierBackend
from lbctl.targets.haproxy.quote import line
from lbctl.targets.token import Token

COUNTERS = 3
REQUESTS_PREFIX, FIT_PREFIX = "set-var proc.most_", "set-var proc.least_"
"""Prefixes of the lines in the `global` section that set the pools' variables."""
_WORDS = 40
"""Maximum number of names in one line. HAProxy accepts 64 words."""
_UNLIMITED = 2**31 - 1
REFUSAL = quote.error("too many requests", "rate_limited")
"""The body of a 429."""


@dataclass(frozen=True, slots=True)
class StickTable:
    """A backend that contains only a stick table."""

    name: Token
    """Name of the section."""
    line: Token


def diagnostics(route: Route) -> Iterator[Diagnostic]:
    """Yield a warning if the route has more limits than HAProxy can count."""
    if len(route.rate_limits) > COUNTERS:
        message = f"HAProxy supports at most {COUNTERS} limits per request, so this route returns 503 on HAProxy"
        path = ("routes", route.name, "rate_limit")
        yield Diagnostic(BY_ID["route.rate_limit"].code, message, path=path, severity="warning")


def tables(route: Route, proxy: Proxy) -> Iterator[StickTable]:
    """Yield the stick tables of the route's limits."""
    for part in _parts(route, proxy):
        limit = part.limit
        key = {"client_ip": "ipv6", "all": "integer"}.get(limit.by, "string len 128")
        size = 10 if limit.by == "all" or part.tenant else 100_000
        stored = "conn_cur" if limit.concurrent else f"gpc0,gpc0_rate({_window(limit)}ms)"
        expire = 3_600_000 if limit.concurrent else 2 * _window(limit)
        table = f"stick-table type {key} size {size} expire {expire}ms store {stored}"
        yield StickTable(Token(part.table), line(table, source=_path(route, part.index)))


def lines(route: Route, proxy: Proxy) -> Iterator[Token]:
    """Yield the lines that track a request in all tables, reject it if any limit is reached, and otherwise count it."""
    route_acl = f"route_{quote.name(route.name).text}"
    parts = tuple(_parts(route, proxy))
    yield from _own_rates(route, route_acl)
    for part in parts:
        yield from _track(part, f"{route_acl}{part.condition}")
    for part in parts:
        index, limit = part.index, part.limit
        retry = 1 if limit.concurrent else max(1, -(-_window(limit) // 1000))
        exceeded = f"sc_conn_cur({index}) gt {limit.concurrent}" if limit.concurrent else _limit_reached(index, limit)
        refuse = f"http-request return status 429 {REFUSAL} hdr Retry-After {retry}"
        condition = f"{route_acl}{part.condition}"
        yield line(refuse, "if", condition, f"{{ {exceeded} }}", source=_path(route, index))
    for index, limit in enumerate(_counted(route)):
        if not limit.concurrent:
            yield line(f"http-request sc-inc-gpc0({index}) if", route_acl, source=_path(route, index))


@dataclass(frozen=True, slots=True)
class _Part:
    """A limit with a separate table, for one tenant or for all clients without a separate rate."""

    index: int
    """Number of the limit within the route, and of HAProxy's counter."""
    limit: RateLimit
    table: str
    tenant: str = ""
    condition: str = ""
    """Additional condition for counting a request, beginning with a space."""


def _parts(route: Route, proxy: Proxy) -> Iterator[_Part]:
    for index, limit in enumerate(_counted(route)):
        table = sections.own(f"limit{index}_{quote.name(route.name).text}", proxy)
        others = f" !{{ var(txn.own{index}) -m found }}" if limit.tenants else ""
        yield _Part(index, limit, table, condition=others)
        for number, (tenant, own) in enumerate(limit.tenants):
            condition = f" {{ var(txn.own{index}) -m str {quote.name(tenant).text} }}"
            own_table = sections.own(f"limit{index}_{number}_{quote.name(route.name).text}", proxy)
            yield _Part(index, own, own_table, tenant, condition)


def _own_rates(route: Route, route_acl: str) -> Iterator[Token]:
    """Yield the lines that mark requests from tenants with separate rates."""
    for index, limit in enumerate(_counted(route)):
        names = [quote.name(tenant).text for tenant, _ in limit.tenants]
        for start in range(0, len(names), _WORDS):
            some = " ".join(names[start : start + _WORDS])
            condition = f"if {route_acl} {{ var(txn.tenant) -m str {some} }}"
            yield line(f"http-request set-var(txn.own{index}) var(txn.tenant)", condition, source=_path(route, index))


def _counted(route: Route) -> tuple[RateLimit, ...]:
    return route.rate_limits if len(route.rate_limits) <= COUNTERS else ()


def _track(part: _Part, route_acl: str) -> Iterator[Token]:
    """Yield the lines that track a request. All requests without the header or tenant share a counter."""
    index, limit = part.index, part.limit
    key = {"client_ip": "src", "all": "int(1)", "tenant": "var(txn.tenant)"}.get(limit.by, "")
    if limit.by in ("client_ip", "all"):
        yield line(f"http-request track-sc{index} {key} table {part.table} if", route_acl)
        return
    fetch = quote.word(key or quote.sample("req.fhdr", limit.header))
    yield line(f"http-request set-var(txn.key{index}) str(-) if", route_acl)
    yield line(f"http-request set-var(txn.key{index})", fetch, "if", route_acl)
    yield line(f"http-request track-sc{index} var(txn.key{index}) table {part.table} if", route_acl)


def _limit_reached(index: int, limit: RateLimit) -> str:
    return f"sc_gpc0_rate({index}) ge {_capacity(limit)}"


def _capacity(limit: RateLimit) -> int:
    return limit.burst or limit.requests


def _window(limit: RateLimit) -> int:
    """Return the duration of a burst at the configured rate, in milliseconds."""
    return max(1, -(-_capacity(limit) * limit.per // limit.requests))


def _path(route: Route, index: int) -> tuple[str | int, ...]:
    return ("routes", route.name, "rate_limit", index)


def requests(pool: Pool) -> int | None:
    """Return the limit, or None if the replicas' own limits do not add up to more.

    In that case requests wait for the replicas instead.
    """
    breaker = pool.circuit_breaker
    limit = min(breaker.max_requests, breaker.max_connections) if pool.protocol == "http1" else breaker.max_requests
    per_replica = servers.limit(pool)
    return limit if per_replica is None or not pool.replicas or per_replica * len(pool.replicas) > limit else None


def value(part: TierBackend) -> int | None:
    """Return the number that the rule compares with, or None without a rule.

    If replicas are added and removed through the Runtime API, the rule always exists, because the limits of additional
    replicas may add up to more than the pool's limit.
    """
    limit = requests(part.pool)
    return _UNLIMITED if limit is None and part.view.proxy.sets_variables else limit


def waiting(part: TierBackend) -> int | None:
    """Return the number of requests that may wait, or None if requests cannot wait.

    Only replicas with limits have a queue.
    """
    return None if servers.limit(part.pool) is None else max(1, part.pool.circuit_breaker.max_pending_requests)


def backend(part: TierBackend) -> str:
    """Return the name of the pool's backend section."""
    return sections.pool(part.name, part.view.proxy)


def variables(part: TierBackend) -> Iterator[tuple[str, int]]:
    """Yield the process variables that contain the limits, with their values; none if the limits are in the rules."""
    yield from _request_variables(part)
    yield from _fit_variables(part)


def declared(parts: Sequence[TierBackend]) -> Iterator[Token]:
    """Yield the lines of the global section that set the variables."""
    for part in parts:
        for name, limit in _request_variables(part):
            yield line(f"set-var {name} int({limit})", source=("pools", part.pool.name, "circuit_breaker"))
    for part in parts:
        for name, number in _fit_variables(part):
            yield line(f"set-var {name} int({number})", source=("pools", part.pool.name))


def _request_variables(part: TierBackend) -> Iterator[tuple[str, int]]:
    if not part.view.proxy.sets_variables:
        return
    for name, limit in ((_in_flight_variable(part), value(part)), (_waiting_variable(part), waiting(part))):
        if limit is not None:
            yield name, limit


def _fit_variables(part: TierBackend) -> Iterator[tuple[str, int]]:
    number = _min_fit(part)
    if number is not None and part.view.proxy.sets_variables:
        yield _fit_variable(part.name), number


def above(part: TierBackend) -> str:
    """Return the condition under which one more request exceeds the limit.

    If requests can wait, txn.queued is the number of waiting requests.
    """
    in_flight = f"be_conn({backend(part)})" + ("" if servers.limit(part.pool) is None else ",sub(txn.queued)")
    if part.view.proxy.sets_variables:
        return f"{{ {in_flight},sub({_in_flight_variable(part)}) gt 0 }}"
    return f"{{ {in_flight} gt {value(part)} }}"


def queue_full(part: TierBackend) -> str:
    """Return the condition under which no further request may wait."""
    queued = f"queue({backend(part)})"
    if part.view.proxy.sets_variables:
        return f"{{ {queued},sub({_waiting_variable(part)}) ge 0 }}"
    return f"{{ {queued} ge {waiting(part)} }}"


def _in_flight_variable(part: TierBackend) -> str:
    return _variable(backend(part))


def _waiting_variable(part: TierBackend) -> str:
    return _variable(f"{backend(part)} waiting")


def _variable(limit: str) -> str:
    """Return the name of a limit's variable. Variable names must not contain `-`, but backend names may."""
    return f"proc.most_{hashlib.sha256(limit.encode()).hexdigest()[:12]}"


def _min_fit(part: TierBackend) -> int | None:
    """Return the number of replicas of this backend that must be healthy; None if no rule needs the number."""
    if part.min_fit:
        return part.min_fit
    shedding = part.pool.load_shedding
    if shedding is None or part.name != part.whole:
        return None
    return int(-(-part.size * shedding.min_healthy // 100))


def _fit_variable(name: str) -> str:
    """Return the variable that contains the result of `_min_fit` for the backend `name`, without its `pool_` prefix."""
    return f"proc.least_{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def fit_compared(fit: str, name: str, number: int, view: View) -> tuple[str, str]:
    """Return a sample and a comparand that compare the sample `fit` with the number of replicas that must be healthy.

    `name` is a backend without its `pool_` prefix; `number` is its number in the rendered file.
    """
    if view.proxy.sets_variables:
        return f"{fit},sub({_fit_variable(quote.name(name).text)})", "0"
    return fit, str(int(number))

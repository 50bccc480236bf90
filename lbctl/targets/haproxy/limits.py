"""Rate limits and limits of concurrent requests, as stick tables.

HAProxy counts in sliding windows. A window of burst ÷ rate in which `burst` requests pass never admits more than the
bucket that the fleet describes, and admits the same rate. Only admitted requests count, so that a client that keeps
retrying is served again as soon as its window allows. HAProxy has three counters for a request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import RateLimit, Route
from lbctl.targets.features import BY_ID
from lbctl.targets.haproxy import quote, sections
from lbctl.targets.token import Token

COUNTERS = 3
_WORDS = 40
"""The number of names in one line; HAProxy accepts 64 words."""
_REFUSAL = quote.error("too many requests", "rate_limited")


@dataclass(frozen=True, slots=True)
class StickTable:
    """A backend that holds a stick table and nothing else."""

    name: Token
    """The name of the section."""
    line: Token


def diagnostics(route: Route) -> Iterator[Diagnostic]:
    """Yield a warning if the route has more limits than HAProxy can count."""
    if len(route.rate_limits) > COUNTERS:
        message = f"HAProxy counts {COUNTERS} limits of a request; this route answers 503 there"
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
        line = f"stick-table type {key} size {size} expire {expire}ms store {stored}"
        yield StickTable(Token(part.table), quote.line(line, source=_path(route, part.index)))


def lines(route: Route, proxy: Proxy) -> Iterator[Token]:
    """Yield the lines that track a request in all tables, refuse it if any limit is reached, and otherwise count it."""
    route_acl = f"route_{quote.name(route.name).text}"
    parts = tuple(_parts(route, proxy))
    yield from _own_rates(route, route_acl)
    for part in parts:
        yield from _track(part, f"{route_acl}{part.condition}")
    for part in parts:
        index, limit = part.index, part.limit
        retry = 1 if limit.concurrent else max(1, -(-_window(limit) // 1000))
        exceeded = f"sc_conn_cur({index}) gt {limit.concurrent}" if limit.concurrent else _limit_reached(index, limit)
        refuse = f"http-request return status 429 {_REFUSAL} hdr Retry-After {retry}"
        condition = f"{route_acl}{part.condition}"
        yield quote.line(refuse, "if", condition, f"{{ {exceeded} }}", source=_path(route, index))
    for index, limit in enumerate(_counted(route)):
        if not limit.concurrent:
            yield quote.line(f"http-request sc-inc-gpc0({index}) if", route_acl, source=_path(route, index))


@dataclass(frozen=True, slots=True)
class _Part:
    """A limit with a table of its own: for one tenant, or for everybody without a rate of his own."""

    index: int
    """The number of the limit in the route, and of HAProxy's counter."""
    limit: RateLimit
    table: str
    tenant: str = ""
    condition: str = ""
    """The further condition under which it counts a request; it begins with a space."""


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
    """Yield the lines that note which requests are of a tenant with a rate of its own."""
    for index, limit in enumerate(_counted(route)):
        names = [quote.name(tenant).text for tenant, _ in limit.tenants]
        for start in range(0, len(names), _WORDS):
            some = " ".join(names[start : start + _WORDS])
            condition = f"if {route_acl} {{ var(txn.tenant) -m str {some} }}"
            yield quote.line(
                f"http-request set-var(txn.own{index}) var(txn.tenant)", condition, source=_path(route, index)
            )


def _counted(route: Route) -> tuple[RateLimit, ...]:
    return route.rate_limits if len(route.rate_limits) <= COUNTERS else ()


def _track(part: _Part, route_acl: str) -> Iterator[Token]:
    """Yield the lines that track a request; all requests without the header or tenant share one counter."""
    index, limit = part.index, part.limit
    key = {"client_ip": "src", "all": "int(1)", "tenant": "var(txn.tenant)"}.get(limit.by, "")
    if limit.by in ("client_ip", "all"):
        yield quote.line(f"http-request track-sc{index} {key} table {part.table} if", route_acl)
        return
    fetch = quote.word(key or quote.sample("req.fhdr", limit.header))
    yield quote.line(f"http-request set-var(txn.key{index}) str(-) if", route_acl)
    yield quote.line(f"http-request set-var(txn.key{index})", fetch, "if", route_acl)
    yield quote.line(f"http-request track-sc{index} var(txn.key{index}) table {part.table} if", route_acl)


def _limit_reached(index: int, limit: RateLimit) -> str:
    return f"sc_gpc0_rate({index}) ge {_capacity(limit)}"


def _capacity(limit: RateLimit) -> int:
    return limit.burst or limit.requests


def _window(limit: RateLimit) -> int:
    """Return the milliseconds in which as many requests as the burst pass at the wanted rate."""
    return max(1, -(-_capacity(limit) * limit.per // limit.requests))


def _path(route: Route, index: int) -> tuple[str | int, ...]:
    return ("routes", route.name, "rate_limit", index)

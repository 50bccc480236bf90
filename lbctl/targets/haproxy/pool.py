"""A pool as a backend: balance, servers, checks, limits.

HAProxy cannot limit the age of idle connections to a replica. `pool-purge-delay` only reduces the number of old
connections, and requests were lost with it. Each HTTP/1 request therefore gets a new connection, so that it never uses
a connection that the replica has just closed. Connections are reused only if the servers keep idle ones open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.pools import Balance, HashKey, Pool
from lbctl.ir.routes import Forward, Route
from lbctl.ir.snapshot import View
from lbctl.targets import replica_token
from lbctl.targets.features import BY_ID
from lbctl.targets.haproxy import (
    bodies,
    hash_vars,
    health,
    hosted,
    limits,
    locality_tiers,
    own_lines,
    pick,
    process,
    quote,
    retries,
    sections,
    servers,
)
from lbctl.targets.haproxy.locality_tiers import TierBackend
from lbctl.targets.haproxy.quote import duration, line
from lbctl.targets.token import Token

_BALANCE = {"least_request": "leastconn", "least_time": "leastconn", "random": "random(1)"}
_SESSIONS = 200_000
"""Maximum number of sessions stored per pool. Beyond it, the oldest is dropped."""
_POOL_FULL = quote.error("the pool is full", "overloaded")
_TOO_FEW_HEALTHY = quote.error("too few replicas are healthy", "unavailable")


@dataclass(frozen=True, slots=True)
class Backend:
    """One backend section: its `lines` in order, followed by its servers."""

    name: Token
    """Name of the section."""
    lines: tuple[Token, ...]
    servers: tuple[Token, ...]
    """`server` lines."""
    own_lines: tuple[Token, ...] = ()
    """Operator's own lines."""


def backend(part: TierBackend) -> Backend:
    """Return the backend of one part of a pool."""
    pool, view = part.pool, part.view
    own = sections.pool(part.name, view.proxy)
    routes = servers.routes_of(pool, view)
    lines = (
        *_balance(pool, view),
        *_affinity(pool, view),
        *_session(pool),
        *_connections(pool),
        *_timeouts(pool, routes),
        *retries.lines(pool, routes),
        *health.lines(pool, view),
        *bodies.lines(pool, view),
        *_request_limit(part),
        *_load_shedding(part, routes),
        *_per_route(routes),
        *retries.lines_by_route(pool, routes),
        *hosted.lines(pool, view),
        *pick.use_server(pool, view),
    )
    own_lines_of_pool = own_lines.tokens(view.proxy, "backend", pool.name)
    return Backend(Token(own), lines, servers.servers(part), own_lines_of_pool)


def diagnostics(part: TierBackend) -> Iterator[Diagnostic]:
    """Yield HAProxy's limitations for this particular pool."""
    yield from retries.diagnostics(part.pool, servers.routes_of(part.pool, part.view), part.view.proxy.version)
    yield from _client_key(part.pool)
    yield from servers.diagnostics(part)


def _client_key(pool: Pool) -> Iterator[Diagnostic]:
    if pool.tls and pool.tls.certificate:
        path = ("pools", pool.name, "tls", "key")
        yield from process.unusable_key(
            pool.tls.certificate, pool.tls.key or "", path, BY_ID["pool.tls.client_certificate"].code
        )


def _balance(pool: Pool, view: View) -> Iterator[Token]:
    path = ("pools", pool.name, "balance")
    if locality_tiers.backups(pool):
        yield Token("option allbackups")
    if pool.balance.key is None:
        yield line("balance", _BALANCE.get(pool.balance.algorithm, "roundrobin"), source=path)
        return
    variable = hash_vars.variable(pool, view)
    key = Token(f"var({variable})") if variable else _key(pool.balance.key, path)
    yield line("balance hash", key, source=path)
    yield Token("hash-type consistent sdbm avalanche")
    yield from _bounded(pool.balance, path)


def _bounded(balance: Balance, path: tuple[str, ...]) -> Iterator[Token]:
    if balance.bounded_load is not None:
        yield line("hash-balance-factor", max(101, round(balance.bounded_load * 100)), source=path)


def _key(key: HashKey, path: tuple[str, ...]) -> Token:
    fetch = {"header": "req.fhdr", "cookie": "req.cook", "query": "url_param"}.get(key.kind)
    if fetch:
        return quote.word(quote.sample(fetch, key.name), path)
    return Token("src" if key.kind == "source_ip" else "var(txn.hashed)", path)


def _affinity(pool: Pool, view: View) -> Iterator[Token]:
    if pool.affinity:
        path = ("pools", pool.name, "affinity")
        cookie, idle = quote.word(pool.affinity.cookie, path), f"maxidle {max(1, pool.affinity.ttl // 1000)}s"
        secure = "secure" if replica_token.for_https_alone(pool.name, view) else ""
        yield line("cookie", cookie, "insert indirect nocache httponly", secure, idle, "attr 'SameSite=Lax'")


def _session(pool: Pool) -> Iterator[Token]:
    """Yield the lines that keep a session on the replica that assigned its ID.

    The table contains hashes of session IDs.
    """
    if pool.session is not None:
        path = ("pools", pool.name, "affinity")
        seconds = max(1, pool.session.ttl // 1000)
        yield line(f"stick-table type binary len 32 size {_SESSIONS} expire {seconds}s", source=(*path, "ttl"))
        for rule, fetch in (("match", "req.fhdr"), ("store-response", "res.fhdr")):
            key = quote.word(quote.sample(fetch, pool.session.name, "sha2(256)"))
            yield line(f"stick {rule}", key, source=(*path, "header"))


def _connections(pool: Pool) -> Iterator[Token]:
    if pool.protocol == "http1" and not _keeps_connections(pool):
        yield line("option http-server-close", source=("pools", pool.name, "connections"))
    if pool.protocol == "grpc":  # a body before the end of the stream hides the status from some clients
        yield line("http-error status 502 hdr grpc-status 14 hdr grpc-message", "'the replica aborted its response'")
        yield line("http-error status 503 hdr grpc-status 14 hdr grpc-message", "'no replica available'")
        yield line("http-error status 504 hdr grpc-status 4 hdr grpc-message", "'the replica did not respond in time'")


def _keeps_connections(pool: Pool) -> bool:
    """Return whether idle HTTP/1 connections are kept: servers must keep them open, and no limit may apply to them.

    HAProxy counts neither the requests of an HTTP/1 connection nor the idle connections of a server.
    """
    uncounted = pool.connections.max_requests is None and pool.circuit_breaker.replica_max_connections is None
    return uncounted and not pool.connections.closed_by_servers


def _timeouts(pool: Pool, routes: Sequence[Route]) -> Iterator[Token]:
    path = ("pools", pool.name, "timeouts")
    longest = duration(_longest([_idle_timeout(route) for route in routes]))
    yield line("timeout connect", duration(pool.connect_timeout), source=(*path, "connect"))
    if servers.limit(pool) is not None:
        yield line("timeout queue", duration(pool.queue_timeout), source=(*path, "queue"))
    yield line("timeout server", longest)
    if any(route.websocket for route in routes):
        yield line("timeout tunnel", longest)


def _idle_timeout(route: Route) -> int | None:
    """Return the route's idle timeout.

    HAProxy cannot limit the time of a whole request or until a response begins, so these two timeouts at least limit
    the idle timeout.
    """
    timeouts = (route.idle_timeout, route.request_timeout, route.attempt_timeout)
    return min((item for item in timeouts if item is not None), default=None)


def _longest(values: Sequence[int | None]) -> int | None:
    limited = [item for item in values if item is not None]
    return max(limited) if limited and len(limited) == len(values) else None


def _per_route(routes: Sequence[Route]) -> Iterator[Token]:
    """Yield the lines for settings that differ between routes but that a backend has only once."""
    if len({_idle_timeout(route) for route in routes}) > 1:
        for route in routes:
            condition = f"if {{ var(txn.route) -m str -- {quote.name(route.name).text} }}"
            path = ("routes", route.name, "timeouts")
            for timeout in ("server", *(["tunnel"] if any(item.websocket for item in routes) else [])):
                yield line(
                    f"http-request set-timeout {timeout}", duration(_idle_timeout(route)), condition, source=path
                )


def _load_shedding(part: TierBackend, routes: Sequence[Route]) -> Iterator[Token]:
    """Yield the line that sheds load if too few replicas of the whole pool are up, whichever part serves."""
    pool = part.pool
    if pool.load_shedding and (pool.replicas or part.view.proxy.runtime_api):
        min_fit = int(-(-part.size * pool.load_shedding.min_healthy // 100))
        whole = f"nbsrv({sections.pool(part.whole, part.view.proxy)})"
        fit, needed = limits.fit_compared(whole, part.whole, min_fit, part.view)
        retry_after = pool.load_shedding.retry_after_seconds
        exceptions = [
            f"!{{ var(txn.route) -m str -- {quote.name(item).text} }}" for item in _with_fallback(pool, routes)
        ]
        too_few = f"{{ {fit} lt {needed} }}"
        yield line(
            f"http-request return status 503 {_TOO_FEW_HEALTHY} hdr Retry-After {retry_after} if {too_few}",
            *exceptions,
            source=("pools", pool.name, "health", "load_shedding"),
        )


def _request_limit(part: TierBackend) -> Iterator[Token]:
    """Yield the lines that reject requests beyond the pool's limits.

    Requests wait only for replicas with their own limits. If the replicas' limits add up to at most the pool's limit,
    they replace it; otherwise a request above the pool's limit cannot wait and is rejected.
    """
    pool, own_backend = part.pool, limits.backend(part)
    path = ("pools", pool.name, "circuit_breaker")
    refuse = f"http-request return status 503 {_POOL_FULL} hdr Retry-After 1 if"
    if servers.limit(pool) is not None:
        yield line(refuse, limits.queue_full(part), source=(*path, "max_pending_requests"))
    if limits.value(part) is not None:
        if servers.limit(pool) is not None:
            yield line(f"http-request set-var(txn.queued) queue({own_backend})")
        yield line(refuse, limits.above(part), source=(*path, "max_requests"))


def _with_fallback(pool: Pool, routes: Sequence[Route]) -> list[str]:
    """Return the routes that use another pool when this one is down.

    Requests on these routes are shed at that pool, not here.
    """
    fallbacks = [(item.name, item.action.fallback) for item in routes if isinstance(item.action, Forward)]
    return [name for name, fallback in fallbacks if fallback not in (None, pool.name)]

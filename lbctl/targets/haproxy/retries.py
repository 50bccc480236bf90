"""Retries after failed connections, of requests that may run twice, and of requests that busy replicas declined.

A backend has only one retry count and one list of conditions, so a route may get fewer retries than configured, but
never more. A request that was sent can be retried only if HAProxy buffered all of it before sending the first byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.pools import Pool
from lbctl.ir.routes import Forward, Route, busy_statuses
from lbctl.ir.snapshot import View
from lbctl.targets.features import BY_ID
from lbctl.targets.haproxy import bodies, quote
from lbctl.targets.haproxy.quote import line
from lbctl.targets.token import Token

BUSY = frozenset({503})
"""Statuses of busy replicas that HAProxy can retry."""
BODY = 64 * 1024
"""Maximum body size in bytes of a request that can be retried after a busy replica declined it."""
_CONNECTION, _BROKEN_OFF, _SILENCE = "conn-failure", "empty-response", "response-timeout"
_COUNTS_RETRIED = (2, 7)
"""First version whose passive checks also count responses that were retried instead of passed on (not in 2.6, but in
2.8)."""
_LOSES_REFUSED = (3, 1)
"""First version in which a refused HTTP/2 connection counts as a broken response (not in 3.0.11, but in 3.2.26)."""


def lines(pool: Pool, routes: Sequence[Route]) -> Iterator[Token]:
    """Yield the lines that set the number and conditions of retries."""
    repeats = _repeats(pool, routes)
    connections = [_CONNECTION] if all("connect_failure" in route.retry.when for route in routes) else []
    source = ("routes", routes[0].name, "retry") if routes else ()
    yield line("retries", number(pool, routes), source=source)
    conditions = connections + sorted(repeats, reverse=True) or ["none"]
    if conditions != [_CONNECTION]:  # this is HAProxy's default
        yield line("retry-on", *conditions)
    yield Token("option redispatch 1")


def number(pool: Pool, routes: Sequence[Route]) -> int:
    """Return the number of retries of the pool's requests."""
    return min(_wanted(pool, routes).values(), default=0)


def lines_by_route(pool: Pool, routes: Sequence[Route]) -> Iterator[Token]:
    """Yield the lines for settings that differ between routes but that a backend has only once.

    A request that may be retried waits for its complete body; all other requests are exempt from retries.
    """
    repeats = _repeats(pool, routes)
    for route in routes if repeats else ():
        condition = f"{{ var(txn.route) -m str -- {quote.name(route.name).text} }}"
        if repeats <= _repeats_of(pool, route):
            yield from bodies.wait(condition)
        else:
            yield line("http-request disable-l7-retry if", condition)


def diagnostics(pool: Pool, routes: Sequence[Route], version: tuple[int, ...]) -> Iterator[Diagnostic]:
    """Yield the retries that routes configure but this version of HAProxy does not support."""
    wanted, repeats = _wanted(pool, routes), _repeats(pool, routes)
    smallest = min(wanted.values(), default=0)
    alone = [route.name for route in routes if "connect_failure" not in route.retry.when]
    for route in routes:
        if alone and smallest and "connect_failure" in route.retry.when:
            message = (
                f"HAProxy retries failed connections for all routes of {pool.name} or for none, but route {alone[0]} "
                "does not retry them"
            )
            yield _warning("route.retry", route, message, "add connect_failure to `when` in all routes of the pool")
        if wanted[route.name] > smallest:
            count = f"{pool.name} has {smallest}, the smallest number of its routes"
            yield _warning("route.retry", route, f"HAProxy has a single number of retries per pool; {count}")
        if route.retry.busy_statuses:
            yield from _about_busy(pool, route, version)
        if version >= _LOSES_REFUSED and wanted[route.name] and pool.protocol != "http1" and pool.tls is None:
            yield _about_refused(pool, route)
        if pool.protocol == "grpc" and _BROKEN_OFF in repeats:
            message = (
                "HAProxy buffers a body for retries until the body is complete: a gRPC client that streams to "
                f"{pool.name} receives no response until its stream has ended"
            )
            yield _warning("route.retry.idempotent", route, message)
        own = _repeats_of(pool, route)
        for condition in sorted(own - repeats if repeats <= own else own):
            message = (
                f"HAProxy has the same retry conditions for all requests to a pool, but not all routes of {pool.name} "
                "have this condition: this route's requests are not retried for it"
            )
            is_busy = condition not in (_BROKEN_OFF, _SILENCE)
            feature = "route.retry.replica_busy" if is_busy else "route.retry.idempotent"
            yield _warning(
                feature,
                route,
                message,
                "use the same retry settings on all routes of the pool, or a separate pool for each route",
            )


def _about_busy(pool: Pool, route: Route, version: tuple[int, ...]) -> Iterator[Diagnostic]:
    statuses = set(busy_statuses(route, pool))
    if statuses & BUSY and pool.passive and pool.passive.ejects_without_bound:
        which = "each busy response" if version >= _COUNTS_RETRIED else "a busy response without a successful retry"
        message = f"HAProxy counts {which} of {pool.name} towards consecutive_5xx"
        yield _warning("pool.health.passive.consecutive_5xx", route, message)
    if statuses - BUSY:
        names = " and ".join(map(str, sorted(statuses - BUSY)))
        yield _warning(
            "route.retry.replica_busy", route, f"HAProxy does not retry {names}: the client receives the response"
        )


def _about_refused(pool: Pool, route: Route) -> Diagnostic:
    message = (
        f"if a replica of {pool.name} refuses a cleartext HTTP/2 connection, HAProxy returns 502 without a retry "
        "until the active check ejects the replica"
    )
    return _warning(
        "route.retry", route, message, "use TLS to the replicas, a shorter health.active.interval, or HAProxy 3.0"
    )


def _warning(feature: str, route: Route, message: str, hint: str = "") -> Diagnostic:
    return Diagnostic(BY_ID[feature].code, message, path=("routes", route.name, "retry"), hint=hint, severity="warning")


def body_bytes(view: View) -> int:
    """Return the number of body bytes that must fit into a buffer.

    A fragment uses the buffers configured in the host's `global`.
    """
    forwards = [(item, item.action) for item in view.routes.values() if isinstance(item.action, Forward)]
    retried = any(_leaves_busy(view.pools[name], route) for route, action in forwards for name in action.pools)
    return BODY if retried and not view.proxy.is_fragment else 0


def _leaves_busy(pool: Pool, route: Route) -> bool:
    return bool(BUSY.intersection(busy_statuses(route, pool)))


def _wanted(pool: Pool, routes: Sequence[Route]) -> dict[str, int]:
    """Map each route to its number of retries."""
    return {
        route.name: route.retry.attempts if "connect_failure" in route.retry.when or _repeats_of(pool, route) else 0
        for route in routes
    }


def _repeats(pool: Pool, routes: Sequence[Route]) -> frozenset[str]:
    """Return the conditions for retrying requests that were sent, as far as all routes that retry any agree on them.

    If the routes have no conditions in common, only busy replicas are retried.
    """
    repeats = [item for item in (_repeats_of(pool, route) for route in routes) if item]
    return frozenset.intersection(*repeats) or frozenset(map(str, BUSY)) if repeats else frozenset()


def _repeats_of(pool: Pool, route: Route) -> frozenset[str]:
    """Return the conditions under which this route's requests may be retried after they were sent."""
    if not route.retry.attempts:
        return frozenset()
    statuses = map(str, BUSY.intersection(busy_statuses(route, pool)))
    silence = [_SILENCE] if route.attempt_timeout is not None else []
    return frozenset({*statuses, *([_BROKEN_OFF, *silence] if route.retry.idempotent else [])})

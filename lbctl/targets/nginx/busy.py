"""Requests that continue on another replica when one is busy.

With `non_idempotent`, nginx retries a POST that was sent after any condition of `next_upstream`; without it, after none
of them. For this reason, a location in which requests leave busy replicas has only their statuses as conditions, unless
the requests of the route are idempotent. Aborted or timed-out requests are then not retried. A request that cannot
connect continues in a second location, which has the same conditions as other routes.

nginx counts a busy response as a failure of the replica (`max_fails`), and two locations do not share failure states.
For this reason, failed connections do not eject replicas from a pool with busy statuses.
"""

from __future__ import annotations

from dataclasses import replace

from lbctl.ir.pools import Pool
from lbctl.ir.routes import Retry, Route, busy_statuses
from lbctl.ir.snapshot import View
from lbctl.targets.nginx import quote
from lbctl.targets.nginx.location_blocks import Forwarding
from lbctl.targets.nginx.render_context import RenderContext
from lbctl.targets.token import Token

_RETRIED = frozenset({429, 503})


def statuses_of_route(route: Route, pool: Pool) -> tuple[int, ...]:
    """Return the statuses after which nginx sends a request of `route` to another replica of `pool`."""
    return tuple(item for item in busy_statuses(route, pool) if item in _RETRIED)


def attempts_of_pool(view: View, pool: Pool) -> int:
    """Return the number of busy replicas that a request to the pool may leave, or 0 if nginx does not retry them."""
    routes = (item for item in view.routes.values() if pool.name in getattr(item.action, "pools", ()))
    return max((item.retry.attempts for item in routes if statuses_of_route(item, pool)), default=0)


def going_on(directives: Forwarding, retry: Retry, statuses: tuple[int, ...]) -> Forwarding:
    """Return the directives with which requests continue on another replica after these statuses.

    The retries need no time limit, because a busy replica has not begun to process the request.
    """
    repeated = ("error", "timeout") if retry.idempotent and "connect_failure" in retry.when else ()
    conditions = (*repeated, *(f"http_{status}" for status in statuses), "non_idempotent")
    return replace(directives, conditions=Token(" ".join(conditions)), tries=retry.attempts + 1, next_timeout=0)


def falling_back(context: RenderContext, directives: Forwarding, prefix: str, location: str) -> Forwarding:
    """Return the directives with which requests continue in `location` if they cannot connect to a replica.

    `prefix` is the prefix of the variables that record this, and `location` lacks its `@`.
    """
    for status, otherwise in (("502", directives.on_502), ("504", directives.on_504)):
        variable = f"{prefix}_{status}"
        if not context.has_map(variable):
            default = (Token("default"), Token(otherwise.text.removeprefix("@")))
            entries = (default, (quote.plain(r"~-\z"), quote.plain(location)))
            context.map("$upstream_connect_time", variable, entries, volatile=True)
    return replace(directives, on_502=Token(f"@{prefix}_502"), on_504=Token(f"@{prefix}_504"))


def warn(context: RenderContext) -> None:
    """Warn about statuses that nginx cannot retry and about replicas that it no longer ejects."""
    for route in context.view.routes.values():
        pools = [context.view.pools[name] for name in getattr(route.action, "pools", ())]
        path = ("routes", route.name, "retry", "busy_statuses")
        unknown = sorted({item for pool in pools for item in busy_statuses(route, pool)} - _RETRIED)
        if unknown:
            message = f"nginx does not retry {' and '.join(map(str, unknown))}: the client receives the response"
            context.warn("route.retry.replica_busy", path, message)
    for pool in context.view.pools.values():
        if pool.passive is not None and attempts_of_pool(context.view, pool):
            message = (
                "nginx counts a busy response as a failure, so lbctl disables the ejection of replicas of "
                f"{pool.name} after failures"
            )
            path = ("pools", pool.name, "health", "passive")
            context.warn(
                "pool.health.passive.connect_failures", path, message, "use `lbctl serve`, which checks the replicas"
            )

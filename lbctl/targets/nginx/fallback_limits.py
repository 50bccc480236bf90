"""The limits of pools that are fallbacks: which of them nginx does not hold."""

from __future__ import annotations

from lbctl.ir.routes import Forward
from lbctl.targets.nginx import limits
from lbctl.targets.nginx.pool import panics
from lbctl.targets.nginx.render_context import RenderContext


def warn(context: RenderContext) -> None:
    """Warn about fallback pools whose breaker does not hold.

    nginx counts a request once, in the location of the pool that it went to first. `max_conns` holds everywhere, for
    each line of an upstream.
    """
    routes = [(route, route.action) for route in context.view.routes.values() if isinstance(route.action, Forward)]
    fallbacks = {item.fallback for _, item in routes if item.fallback and set(item.pools) != {item.fallback}}
    for pool in (context.view.pools[name] for name in sorted(fallbacks)):
        replicas, each = len(pool.replicas), limits.most_of_replica(pool)
        is_in_one_line = replicas == 1 or not panics(pool)
        is_in_one_upstream = pool.balance.pick is None and not any(
            route.regions for route, action in routes if pool.name in (*action.pools, action.fallback)
        )
        is_held = each and 0 < replicas * each <= limits.most(pool) and is_in_one_line and is_in_one_upstream
        if pool.is_limited and not is_held:
            context.warn(
                "pool.circuit_breaker",
                ("pools", pool.name, "circuit_breaker"),
                f"nginx counts a request in the pool that it goes to first: {pool.name} gets more than its limit of "
                "what comes to it as fallback",
                "limits that hold there: `per_replica`, with `max_ejection: 100%` in `health.passive`",
            )

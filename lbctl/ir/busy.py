"""Which answers of a replica mean that it was busy: it declined before it worked, so another one may be asked."""

from __future__ import annotations

from collections.abc import Iterable

from lbctl.ir.pools import Pool
from lbctl.ir.routes import Route


def statuses(route: Route, pool: Pool) -> tuple[int, ...]:
    """Return the statuses after which a request of `route` goes on to another replica of `pool`.

    A gRPC server declines by the status of gRPC, not of HTTP.
    """
    return route.retry.busy_statuses if route.retry.attempts and pool.protocol != "grpc" else ()


def statuses_of(pool: Pool, routes: Iterable[Route]) -> tuple[int, ...]:
    """Return the statuses by which replicas of `pool` are busy for at least one of the routes, which lead there."""
    return tuple(sorted({status for route in routes for status in statuses(route, pool)}))

"""The route splits that the control plane uses instead of those in the fleet files.

A split has the same pools as the route's split in the files but different shares, so that a route never uses a pool
that the compiler has not checked for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from lbctl.base.diagnostics import show
from lbctl.ir.routes import Forward, Route, Share
from lbctl.ir.topology import Topology

MAX_SHARE = 2**31 - 1
"""The maximum share, the same as in a fleet file."""
Shares = tuple[tuple[str, int], ...]
"""(pool, share) pairs, sorted by pool. Shares are non-negative integer weights, and at least one is positive."""


def shares_of(route: Route) -> Shares:
    """Return a route's split, which is empty if the route does not forward requests."""
    shares = route.action.shares if isinstance(route.action, Forward) else ()
    return tuple((share.pool, share.weight) for share in shares)


def with_sum_of(base: Shares, shares: Shares) -> Shares:
    """Return the shares scaled to the base's sum if the results are integers. For example, 19 and 1 become 95 and 5."""
    total, current = (sum(share for _, share in each) for each in (base, shares))
    if not total or not current or total % current:
        return shares
    return tuple((pool, share * (total // current)) for pool, share in shares)


def checked(shares: object, route: Route) -> Shares:
    """Return the shares of a valid split of the route. Raises ValueError with a message for users."""
    pools = [pool for pool, _ in shares_of(route)]
    if len(pools) < 2:
        raise ValueError(f"the route {route.name} has no split")
    if not isinstance(shares, Mapping) or set(shares) != set(pools):
        raise ValueError(f"a split of route {route.name} needs a share for each of its pools: {', '.join(pools)}")
    for pool, share in shares.items():
        if isinstance(share, bool) or not isinstance(share, int) or not 0 <= share <= MAX_SHARE:
            raise ValueError(f"the share {show(share)} of {pool} is not a whole number from 0 to {MAX_SHARE}")
    if not any(shares.values()):
        raise ValueError("the shares add up to 0: at least one share must be above 0")
    return tuple(sorted(shares.items()))


def apply(topology: Topology, splits: Mapping[str, Shares]) -> Topology:
    """Return the topology with these splits, given as a mapping from routes to shares.

    Routes not in the topology are ignored.
    """
    if not splits:
        return topology
    return replace(topology, routes=tuple(_applied(topology.routes, splits)))


def _applied(routes: Iterable[Route], splits: Mapping[str, Shares]) -> Iterable[Route]:
    for route in routes:
        if route.name in splits and isinstance(route.action, Forward):
            shares = tuple(Share(pool, share) for pool, share in splits[route.name])
            yield replace(route, action=replace(route.action, shares=shares))
        else:
            yield route

"""Rules about limits of the fleet, of which every proxy holds its part."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.ir.routes import RateLimit, Route
from lbctl.ir.settings.routes import limit_text
from lbctl.ir.snapshot import divided_limit, instances_of
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.rule import RuleFinding, rule

_MIN_REQUESTS = 10
"""Requests of a client that one proxy should let through, by the rate or at once."""


@rule("LB533")
def divided_limit_of_a_client(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB533: limits by client of which a single proxy holds little."""
    for route in fleet.topology.routes:
        instances = instances_of(fleet.topology, frozenset(route.listeners))
        for index, limit in enumerate(route.rate_limits):
            if instances > 1 and limit.by != "all":
                yield from _finding(route, index, limit, divided_limit(limit, instances), instances)


def _finding(route: Route, index: int, limit: RateLimit, divided: RateLimit, instances: int) -> Iterator[RuleFinding]:
    if (divided.concurrent or divided.requests) < _MIN_REQUESTS:
        key = "concurrent" if limit.concurrent else "rate"
        whole, piece = (limit_text(item).partition(": ")[2] for item in (limit, divided))
        message = f"{whole} for the fleet is {piece} at each of its {instances} instances"
        hint = "room for a client that reaches one of them, or fewer `instances`"
        yield RuleFinding(("routes", route.name, "rate_limit", index, key), message, hint)

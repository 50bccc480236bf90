"""Rules about limits of the fleet, of which every proxy holds its part."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.ir.routes import RateLimit, Route
from lbctl.ir.settings.routes import limit_text
from lbctl.ir.snapshot import divided_limit, instances_of
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.rule import RuleFinding, rule
from lbctl.lint.sample import sample

_MIN_REQUESTS = 10
"""Requests of a client that one proxy should let through, by the rate or at once."""
_FOUR = "proxies: {edge: {kind: envoy, instances: 4}}\n"


def _limited(rate: str) -> str:
    limit = f"{{by: client_ip, rate: {rate}, burst: {rate.partition('/')[0]}}}"
    return f"chat: {{match: {{path_prefix: /v1/chat}}, pool: llama, rate_limit: [{limit}]}}\n"


@rule(
    "LB533",
    "warning",
    "a limit of which each proxy has little",
    what="A limit by tenant, client or header is divided among the instances of the proxies, and one instance lets "
    f"fewer than {_MIN_REQUESTS} requests of a client through, in the unit of its rate or at once.",
    why="Proxies do not count together: each has its part of the fleet's limit, rounded up. A client whose connections "
    "all lead to one proxy gets that part alone: of 5/s over four proxies 2/s, without a word.",
    before=sample(routes=_limited("5/s"), more=_FOUR),
    after=sample(routes=_limited("50/s"), more=_FOUR),
    ignore="The balancer before the proxies spreads every client's requests over all of them.",
)
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

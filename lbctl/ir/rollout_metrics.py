"""Which requests the rollouts of a fleet are judged by: the pools, and the latencies that are measured.

Proxies report all requests where something is measured, else about one of four for the views: a report costs an Envoy
about 12 µs of its processor and a HAProxy 20 µs, where a request costs them 57 and 95 µs
(docs/reference/traffic-reports.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from lbctl.ir.routes import Forward, Route

ERRORS_OF = "lbctl-errors/"
"""What the name of the log with Envoy's own errors for a pool begins with; the pool's name follows."""


class LatencyKey(NamedTuple):
    """What is measured of the requests of one pool."""

    pool: str
    metric: str
    """The time until the first byte (`first_byte`) or the last byte (`total`) of the answer."""


def measured(routes: Iterable[Route]) -> frozenset[LatencyKey]:
    """Return what has to be measured for the analyses of these routes."""
    return frozenset(
        LatencyKey(share.pool, metric)
        for route in routes
        if (metric := _metric(route)) and isinstance(route.action, Forward)
        for share in route.action.shares
    )


def judged(routes: Iterable[Route]) -> frozenset[str]:
    """Return the pools whose errors decide an analysis of these routes."""
    return frozenset(
        share.pool
        for route in routes
        if route.rollout is not None and route.rollout.mode == "analysis" and isinstance(route.action, Forward)
        for share in route.action.shares
    )


def _metric(route: Route) -> str:
    rollout = route.rollout
    if rollout is None or rollout.mode != "analysis" or rollout.analysis is None:
        return ""
    return rollout.analysis.latency_metric or ""

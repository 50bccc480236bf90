"""Rules about splits between versions of a model, and rollouts."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from lbctl.control.loop_output import shortest_interval
from lbctl.ir.routes import Forward
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.rule import Edit, RuleFinding, rule
from lbctl.targets import uncounted, untimed

_REPORTS = 5.0
"""Maximum number of seconds between two reports from a proxy."""


@rule("LB703")
def analysis_without_figures(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report analyses for which no proxy reports requests (LB703)."""
    proxies = fleet.topology.proxies
    if not proxies or any(not uncounted(proxy) for proxy in proxies):
        return
    for route in fleet.topology.routes:
        if route.rollout is not None and route.rollout.mode == "analysis":
            message = "no proxy in the fleet can report its requests, so every evaluation is inconclusive"
            missing = next((f"proxies.{item.name}.{uncounted(item)}" for item in proxies), "")
            yield RuleFinding(("routes", route.name, "rollout"), message, f"set {missing}, or mode: timed")


@rule("LB704")
def latency_not_measured(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report analyses with a latency limit that no proxy can measure (LB704)."""
    proxies, logs = fleet.topology.proxies, fleet.topology.control.logs_written
    if not proxies or any(not untimed(proxy, logs) for proxy in proxies):
        return
    for route in fleet.topology.routes:
        rollout = route.rollout
        if rollout is None or rollout.mode != "analysis" or rollout.analysis is None:
            continue
        if rollout.analysis.latency_metric is not None:
            message = (
                "no proxy in the fleet can report latencies, so no evaluation can pass and an operator must end each "
                "step"
            )
            path = ("routes", route.name, "rollout", "analysis", "max_latency")
            yield RuleFinding(path, message, "set control.logs, and run HAProxy with the rendered configuration")


@rule("LB706")
def interval_below_reports(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report analyses that run more often than the proxies report (LB706)."""
    reports = min(_REPORTS, shortest_interval(fleet.topology) or _REPORTS)
    for route in fleet.topology.routes:
        analysis = route.rollout.analysis if route.rollout and route.rollout.mode == "analysis" else None
        if analysis is not None and analysis.interval < 1000 * reports:
            path = ("routes", route.name, "rollout", "analysis", "interval")
            message = f"proxies report only every {reports:g} s, so most evaluations find no new requests"
            yield RuleFinding(path, message, "interval: 10s", Edit(path, "10s"))


@rule("LB710")
def split_mixes_versions(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report splits between model versions without sticky clients (LB710)."""
    for route, action in fleet.forwards:
        if len(_models(fleet, action)) > 1 and action.sticky is None and not action.pins:
            message = "a pool is chosen independently for each request, so one conversation may reach several models"
            yield RuleFinding(("routes", route.name, "split"), message, "sticky_split: {cookie: NAME, ttl: 1h}")


def _models(fleet: FleetView, action: Forward) -> set[tuple[str, str | None]]:
    models = (fleet.pool(share.pool).model for share in action.shares if share.weight)
    return {(model.name, model.version) for model in models if model is not None}


@rule("LB711")
def insufficient_sample(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report analyses with too few requests for their percentile (LB711)."""
    for route in fleet.topology.routes:
        analysis = route.rollout.analysis if route.rollout else None
        if analysis is None or analysis.latency_metric is None:
            continue
        percentile = int(analysis.latency_percentile.removeprefix("p"))
        least = ceil(10 * 100 / (100 - percentile))
        if analysis.min_requests < least:
            path = ("routes", route.name, "rollout", "analysis", "min_requests")
            message = f"{analysis.min_requests} requests are too few for a reliable {analysis.latency_percentile}"
            yield RuleFinding(path, message, f"min_requests: {least}", Edit(path, least))

"""API rows for rollouts. The functions are pure; times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from lbctl.api import schema
from lbctl.control import rollouts
from lbctl.control.analysis.evidence import Evaluation, LatencyValues, MetricValues, RequestCounts
from lbctl.control.outages import Outages
from lbctl.control.overrides import Override, Overrides
from lbctl.control.rollouts import DEFAULT_ANALYSIS, Rollouts, RolloutState
from lbctl.control.splits import shares_of, with_sum_of
from lbctl.ir.routes import Rollout, Route
from lbctl.ir.topology import Topology
from lbctl.serve.api.status_rows import timestamp, when

_A_PROXY = "a connected proxy of the route that has applied the step"
_UNCOVERED = "the end of the split override"


def rows(
    states: Rollouts,
    files: Topology,
    served: Topology,
    overrides: Overrides,
    requests: Mapping[str, int],
    outages: Outages,
    now: float,
) -> Iterator[schema.Rollout]:
    """Yield a row for each rollout in the files. `served` contains the splits that the proxies use.

    `requests` maps each pool to its number of requests in the last minute, as reported by the proxies.
    """
    holders = {item.route: _holder(item) for item in overrides if item.kind == "split"}
    current = {route.name: route for route in served.routes}
    by_route = {state.route: state for state in states}
    for route in files.routes:
        if route.rollout is not None and route.name in by_route:
            row = _row(by_route[route.name], route.rollout, current.get(route.name, route), now)
            holder = holders.get(route.name)
            waits = rollouts.waits_for_proxy(by_route[route.name], route.rollout)
            waits_for = (_UNCOVERED if holder else _A_PROXY) if waits else None
            yield replace(
                row,
                held_by=holder,
                hold_waits_for=waits_for,
                unavailable=_unavailable(by_route[route.name], route.rollout, outages),
                observed=_observed(row, requests),
            )


def _unavailable(state: RolloutState, rollout: Rollout, outages: Outages) -> str | None:
    outage = rollouts.unavailable(state, rollout, outages)
    return outage.reason if outage is not None and (state.runs or state.phase == "waiting") else None


def _observed(row: schema.Rollout, requests: Mapping[str, int]) -> float | None:
    total = sum(requests.get(pool, 0) for pool in {row.to, *row.split})
    return round(requests.get(row.to, 0) / total, 4) if total else None


def _holder(split: Override) -> str:
    """Return a split override's author, end and reason."""
    until = f" until {timestamp(split.until)}" if split.until is not None else ""
    return f"{split.author or 'an operator'}{until}" + (f": {split.reason}" if split.reason else "")


def _row(state: RolloutState, rollout: Rollout, served: Route, now: float) -> schema.Rollout:
    return schema.Rollout(
        route=state.route,
        to=rollout.to,
        mode=rollout.mode,
        phase=state.phase,
        step=state.step + 1,
        steps=tuple(
            schema.RolloutStep(step.percent, None if step.hold is None else step.hold / 1000) for step in rollout.steps
        ),
        percent=state.percent if state.moves else None,
        split=dict(with_sum_of(state.base, shares_of(served))),
        since=when(state.since),
        next_at=when(rollouts.next_step(state, rollout)),
        reason=state.reason or None,
        analysis=_analysis(state, rollout, now) if rollout.mode == "analysis" else None,
    )


def _analysis(state: RolloutState, rollout: Rollout, now: float) -> schema.RolloutAnalysis:
    evidence = state.analysis
    return schema.RolloutAnalysis(
        waits_for=rollouts.blocker(state, rollout, now) or None,
        new=_counts(evidence.step_new),
        old=_counts(evidence.step_old),
        failures=evidence.failures,
        max_failures=(rollout.analysis or DEFAULT_ANALYSIS).failures,
        verdicts={"good": evidence.good, "bad": evidence.bad, "inconclusive": evidence.inconclusive},
        evaluations=tuple(map(evaluation, evidence.evaluations)),
    )


def evaluation(item: Evaluation) -> schema.RolloutEvaluation:
    """Return an evaluation as an API row."""
    return schema.RolloutEvaluation(
        at=timestamp(item.at),
        step=item.step + 1,
        verdict=item.verdict,
        reason=item.reason or None,
        new=_counts(item.new),
        old=_counts(item.old),
        metrics=tuple(map(_metric, (*((item.latency,) if item.latency else ()), *item.metrics))),
    )


def _counts(counts: RequestCounts) -> schema.RolloutCounts:
    return schema.RolloutCounts(counts.requests, counts.errors, counts.rate)


def _metric(item: LatencyValues | MetricValues) -> schema.RolloutMetric:
    return schema.RolloutMetric(
        item.name, item.new, item.old, item.ratio, item.max_ratio, item.verdict, item.problem or None
    )

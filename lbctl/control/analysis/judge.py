"""The verdict on an interval, and whether a rollout step may end.

An interval is bad if the new pool's error rate is significantly and relevantly higher than the old pools' rate, or if
the new pool is slower than `max_latency` allows (`slowness`). If the split sends no requests to the old pools, the new
pool's error rate is compared only with `max_error_rate`. An interval with fewer than `min_requests` requests on either
side is inconclusive and is merged with the next one. If nearly all requests to the new pool failed but hardly any to
the old pools did, the interval is bad even with few requests.
"""

from __future__ import annotations

from dataclasses import replace

from lbctl.control.analysis import slowness
from lbctl.control.analysis.evidence import (
    KEPT,
    NO_REQUESTS,
    AnalysisState,
    Evaluation,
    IntervalObservation,
    LatencyValues,
    RequestCounts,
    Verdict,
)
from lbctl.control.analysis.latency import NO_LATENCIES
from lbctl.control.analysis.statistics import cluster_size, excess_over_pool, excess_over_rate, level
from lbctl.ir.routes import Analysis

MATERIAL_RATIO = 1.5
"""An error rate below `max_error_rate` is relevant only if it is at least this many times the old pools' rate."""
MATERIAL_PART = 0.25
"""A rate below this fraction of `max_error_rate` never matters."""
_MIN_OUTAGE_REQUESTS = 20
"""Minimum number of requests to the new pool, and to the old pools if they are compared, before an outage is
reported."""
_OUTAGE_RATE, _HEALTHY_RATE = 0.9, 0.05
"""Minimum error rate of a pool that has an outage. Old pools with a lower rate count as healthy."""
STEP_LEVEL = 0.05
"""Significance level at which a difference over the whole step prevents the step from ending."""


def evaluate(
    state: AnalysisState, observation: IntervalObservation, analysis: Analysis, step: int, compared: bool, now: float
) -> AnalysisState:
    """Return the state after one more interval. `compared` is whether the split sends requests to the old pools."""
    if _is_outage(observation.new, observation.old, compared):
        state = _without_waiting(state)  # earlier requests must not hide it
    new, old = state.waiting_new + observation.new, state.waiting_old + observation.old
    evaluation = Evaluation(now, step, "inconclusive", "", new, old, observation.metrics)
    state = replace(
        state,
        waiting_latency_new=state.waiting_latency_new + observation.latency_new,
        waiting_latency_old=state.waiting_latency_old + observation.latency_old,
    )
    missing = _missing(observation, new, old, analysis, compared)
    if missing and not (observation.reporting and _is_outage(new, old, compared)):
        waiting = replace(state, waiting_new=new, waiting_old=old)
        return _with(waiting, replace(evaluation, reason=missing))
    evaluation = replace(evaluation, tested=True)
    state = _without_waiting(replace(state, tests=state.tests + 1, waiting_new=new, waiting_old=old))
    if compared and analysis.latency_metric is not None:
        evaluation = replace(evaluation, latency=_latency(state, analysis))
        state = _with_latency(state, evaluation.latency)
    verdict, reason = _judge(state, evaluation, observation.silent, analysis, compared)
    return _with(state, replace(evaluation, verdict=verdict, reason=reason))


def _without_waiting(state: AnalysisState) -> AnalysisState:
    """Return the state after adding the requests awaiting a comparison to the step's requests."""
    return replace(
        state,
        waiting_new=NO_REQUESTS,
        waiting_old=NO_REQUESTS,
        step_new=state.step_new + state.waiting_new,
        step_old=state.step_old + state.waiting_old,
    )


def _latency(state: AnalysisState, analysis: Analysis) -> LatencyValues:
    earlier = [item.latency for item in state.evaluations if item.latency is not None]
    new, old = state.waiting_latency_new, state.waiting_latency_old
    return slowness.judged(new, old, analysis, _significance(state, analysis), earlier)


def _with_latency(state: AnalysisState, values: LatencyValues | None) -> AnalysisState:
    """Return the state after a latency comparison. If too few latencies are available, they are carried over."""
    if values is None or not slowness.is_tested(values):
        return state
    return replace(
        state,
        waiting_latency_new=NO_LATENCIES,
        waiting_latency_old=NO_LATENCIES,
        step_slow_new=state.step_slow_new + values.slow_new,
        step_slow_old=state.step_slow_old + values.slow_old,
    )


def _significance(state: AnalysisState, analysis: Analysis) -> float:
    """Return the significance level for each test in this interval. Two tests each get half of it."""
    return level(state.tests, analysis.failures) / (1 if analysis.latency_metric is None else 2)


def _with(state: AnalysisState, evaluation: Evaluation) -> AnalysisState:
    failures = {"good": 0, "bad": state.failures + 1, "inconclusive": state.failures}[evaluation.verdict]
    return replace(
        state,
        evaluations=(*state.evaluations, evaluation)[-KEPT:],
        failures=failures,
        good=state.good + (evaluation.verdict == "good"),
        bad=state.bad + (evaluation.verdict == "bad"),
        inconclusive=state.inconclusive + (evaluation.verdict == "inconclusive"),
    )


def _missing(
    observation: IntervalObservation, new: RequestCounts, old: RequestCounts, analysis: Analysis, compared: bool
) -> str:
    """Return the reason why too few requests are available for a comparison, or an empty string if there are enough."""
    if not observation.reporting:
        return "no proxy reports its requests"
    if new.requests < analysis.min_requests:
        return f"the new pool has {new.requests} of the required {analysis.min_requests} requests"
    if compared and old.requests < analysis.min_requests:
        return f"the old pools have {old.requests} of the required {analysis.min_requests} requests"
    return ""


def _judge(
    state: AnalysisState, evaluation: Evaluation, silent: tuple[str, ...], analysis: Analysis, compared: bool
) -> tuple[Verdict, str]:
    new, old = evaluation.new, evaluation.old
    significance = _significance(state, analysis)
    if _is_worse(new, old, analysis, compared, significance, _clusters(*state.evaluations, evaluation)):
        return "bad", "its error rate is significantly higher"
    if _is_outage(new, old, compared):
        return "bad", "nearly all of its requests failed"
    latency = evaluation.latency
    if latency is not None and latency.verdict == "bad":
        return "bad", f"{slowness.described(latency)}, significantly slower"
    bad = [item for item in evaluation.metrics if item.verdict == "bad"]
    if bad:
        return "bad", "; ".join(f"{item.name} is {item.ratio:.3g} times the old value" for item in bad)
    reason = _unknown(evaluation, silent) or _too_many(new, analysis, compared)
    return ("inconclusive", reason) if reason else ("good", "")


def _clusters(*evaluations: Evaluation) -> float:
    """Return the cluster size estimated from the evaluations with enough requests."""
    return cluster_size([(item.new, item.old) for item in evaluations if item.tested])


def _is_outage(new: RequestCounts, old: RequestCounts, compared: bool) -> bool:
    """Return whether nearly all requests to the new pool are failing while the old pools are healthy."""
    if new.requests < _MIN_OUTAGE_REQUESTS or (compared and old.requests < _MIN_OUTAGE_REQUESTS):
        return False
    return (new.rate or 0.0) >= _OUTAGE_RATE and (not compared or (old.rate or 0.0) < _HEALTHY_RATE)


def _is_worse(
    new: RequestCounts, old: RequestCounts, analysis: Analysis, compared: bool, significance: float, cluster: float
) -> bool:
    limit = _limit(analysis)
    if not compared:
        return excess_over_rate(new, limit, cluster) < significance
    new_rate, old_rate = new.rate or 0.0, old.rate or 0.0
    matters = new_rate > limit or new_rate > max(MATERIAL_RATIO * old_rate, MATERIAL_PART * limit)
    return matters and excess_over_pool(new, old, cluster) < significance


def _unknown(evaluation: Evaluation, silent: tuple[str, ...]) -> str:
    """Return the values that the analysis needs but does not have, or an empty string if nothing is missing."""
    missing = [
        f"{item.name}: {item.problem or 'a ratio to 0 is undefined'}"
        for item in evaluation.metrics
        if item.ratio is None
    ]
    if missing:
        return "; ".join(missing)
    if silent:
        return f"no report from {', '.join(silent)}"
    return evaluation.latency.problem if evaluation.latency is not None else ""


def _too_many(new: RequestCounts, analysis: Analysis, compared: bool) -> str:
    """Return the reason why a rate that is not clearly worse is not good either, or an empty string if it is good."""
    rate, limit = new.rate or 0.0, _limit(analysis)
    if rate <= limit:
        return ""
    than = "in the old pools" if compared else "the limit"
    return (
        f"an error rate of {percentage(rate)} is above max_error_rate ({percentage(limit)}), but not significantly "
        f"higher than {than}"
    )


def _limit(analysis: Analysis) -> float:
    return (100.0 if analysis.max_error_rate is None else analysis.max_error_rate) / 100


def blocker(state: AnalysisState, analysis: Analysis, step: int, since: float, compared: bool, now: float) -> str:
    """Return what the step is waiting for in addition to its `hold`, or "" if the evidence allows it to end.

    `since` is the time at which the step began or was resumed, in seconds since the epoch.
    """
    last = state.evaluations[-1] if state.evaluations else None
    if last is None or last.step != step or last.at <= since:
        return "the first evaluation of this step"
    if now - last.at > 2.5 * analysis.interval / 1000:
        return "a new evaluation"
    if last.verdict == "bad":
        return f"a passed evaluation after {state.failures} of {analysis.failures} consecutive failures"
    if last.verdict == "inconclusive":
        return last.reason
    if _is_worse(state.step_new, state.step_old, analysis, compared, STEP_LEVEL, _clusters(*state.evaluations)):
        return "fewer errors: over the whole step, the new pool has a higher error rate than the old pools"
    cluster = slowness.cluster_of(item.latency for item in state.evaluations if item.latency is not None)
    slow = slowness.step_blocker(state.step_slow_new, state.step_slow_old, STEP_LEVEL, cluster)
    return slow or _too_many(state.step_new, analysis, compared)


def for_step(state: AnalysisState) -> AnalysisState:
    """Return the state at the start or resumption of a step, without evidence from the previous step."""
    return replace(
        state,
        failures=0,
        waiting_new=NO_REQUESTS,
        waiting_old=NO_REQUESTS,
        step_new=NO_REQUESTS,
        step_old=NO_REQUESTS,
        waiting_latency_new=NO_LATENCIES,
        waiting_latency_old=NO_LATENCIES,
        step_slow_new=NO_REQUESTS,
        step_slow_old=NO_REQUESTS,
    )


def describe(evaluation: Evaluation) -> str:
    """Format an evaluation's numbers as one sentence."""
    sides = f"new {_side(evaluation.new)}, old {_side(evaluation.old)}"
    metrics = "".join(f"; {item.name} {_value(item.new)} against {_value(item.old)}" for item in evaluation.metrics)
    reason = f" ({evaluation.reason})" if evaluation.reason else ""
    latency = "" if evaluation.latency is None else f"; {slowness.described(evaluation.latency)}"
    return f"{evaluation.verdict}{reason}: {sides}{latency}{metrics}"


def _side(counts: RequestCounts) -> str:
    if counts.rate is None:
        return "no requests"
    return f"{counts.errors} errors in {counts.requests} requests ({percentage(counts.rate)})"


def percentage(share: float) -> str:
    """Format a share, from 0 to 1, as human-readable text."""
    return f"{100 * share:.2f} %"


def _value(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"

"""Determines whether a new pool is slower than the old ones by counting slow requests on both sides.

Both sides are measured against the old pools' percentile. A request to the old pools is slow if it takes longer than
this percentile, and a request to the new pool is slow if it takes longer than `max_latency.ratio` times the percentile.
If the new pool is exactly as slow as the ratio allows, the fraction of slow requests is equal on both sides, so slow
requests are tested the same way as errors. The test makes no assumption about the latency distribution.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from lbctl.control.analysis.evidence import LatencyValues, RequestCounts
from lbctl.control.analysis.latency import LatencyHistogram
from lbctl.control.analysis.statistics import excess_over_pool, slow_cluster_size
from lbctl.ir.routes import Analysis

_COMMON = 1.5
"""Factor above which a change in the old pools' percentile may indicate an event that delays both sides."""
TOLERANCE = 2.0
"""Milliseconds by which the new pool may always be slower, because proxies measure in whole milliseconds."""


def judged(
    new: LatencyHistogram,
    old: LatencyHistogram,
    analysis: Analysis,
    significance: float,
    earlier: Iterable[LatencyValues],
) -> LatencyValues:
    """Return both sides' values and the verdict on them. `earlier` contains the values from earlier intervals."""
    share = int(analysis.latency_percentile.removeprefix("p")) / 100
    values = LatencyValues(
        f"{analysis.latency_metric} {analysis.latency_percentile}",
        analysis.latency_ratio,
        new.percentile(share),
        old.percentile(share),
    )
    if missing := _missing(new, old, analysis.min_requests):
        return replace(values, problem=missing)
    values = _compared(values, new, old, share)
    cluster = cluster_of([*earlier, values])
    if excess_over_pool(values.slow_new, values.slow_old, cluster) < significance:
        return replace(values, verdict="bad")
    if _is_slower(values.slow_new, values.slow_old):
        return replace(values, problem=f"{described(values)}, which is not significant")
    return replace(values, verdict="good")


def cluster_of(values: Iterable[LatencyValues]) -> float:
    """Return the number of slow requests that occur together, estimated from intervals with enough requests."""
    tested = [item for item in values if is_tested(item)]
    changes = [
        ((before.slow_new, before.slow_old), (after.slow_new, after.slow_old))
        for before, after in pairwise(tested)
        if not _changed_together(before, after)
    ]
    return slow_cluster_size(changes)


def _changed_together(before: LatencyValues, after: LatencyValues) -> bool:
    """Return whether an event that delays both sides began or ended between the intervals.

    A stalled machine delays all requests by the same amount, which makes both sides' percentiles similar and hides
    which side is slow.
    """
    known = [(item.old, item.new) for item in (before, after) if item.old and item.new is not None]
    if len(known) < 2:
        return False
    (old_faster, new_faster), (old_slower, new_slower) = sorted(known)
    return old_slower >= _COMMON * old_faster and new_slower - new_faster >= (old_slower - old_faster) / 2


def is_tested(values: LatencyValues) -> bool:
    """Return whether enough requests were measured for a comparison."""
    return values.slow_old.requests > 0


def step_blocker(new: RequestCounts, old: RequestCounts, significance: float, cluster: float) -> str:
    """Return the reason why the whole step's latencies prevent it from ending, or an empty string if they do not."""
    if _is_slower(new, old) and excess_over_pool(new, old, cluster) < significance:
        return "lower latency: over the whole step, the new pool is slower than max_latency allows"
    return ""


def described(values: LatencyValues) -> str:
    """Format both percentiles as human-readable text."""
    ratio = "" if values.ratio is None else f", a ratio of {values.ratio:.3g} (at most {values.max_ratio:.3g})"
    return f"{values.name} is {_milliseconds(values.new)} against {_milliseconds(values.old)}{ratio}"


def _milliseconds(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g} ms" if value < 1000 else f"{value / 1000:.3g} s"


def _missing(new: LatencyHistogram, old: LatencyHistogram, least: int) -> str:
    for side, counted in (("the new pool", new.requests), ("the old pools", old.requests)):
        if counted < least:
            return f"the latency of only {counted} requests of {side} is known (at least {least} are needed)"
    return ""


def _compared(values: LatencyValues, new: LatencyHistogram, old: LatencyHistogram, share: float) -> LatencyValues:
    """Return the values with the slow requests on both sides."""
    limit = old.limit(share)
    return replace(
        values,
        slow_new=RequestCounts(new.requests, new.above(max(values.max_ratio * limit, limit + TOLERANCE))),
        slow_old=RequestCounts(old.requests, old.above(limit)),
    )


def _is_slower(new: RequestCounts, old: RequestCounts) -> bool:
    return (new.rate or 0.0) > (old.rate or 0.0)

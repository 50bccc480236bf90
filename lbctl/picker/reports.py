"""A picker's report about its decisions, and the line that carries it over the link to the control plane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lbctl.pick.lengths import Factors
from lbctl.picker import wire
from lbctl.picker.statistics import (
    BOUNDS,
    WAIT_BOUNDS,
    DecisionSample,
    DurationHistogram,
    QueueStatistics,
    TenantWaits,
)


@dataclass(frozen=True, slots=True)
class PickerReport:
    """A picker's counts since it started, and its samples since the previous report."""

    reasons: tuple[tuple[str, str, int], ...] = ()
    """Triples of pool, reason, and number of decisions."""
    times: Mapping[str, DurationHistogram] = field(default_factory=dict)
    """Maps each pool to the durations of its decisions."""
    finished: Mapping[str, int] = field(default_factory=dict)
    """Maps each pool to the number of picked requests that have ended."""
    lost: Mapping[str, int] = field(default_factory=dict)
    """Maps each pool to the number of ended requests whose end was never reported."""
    open: int = 0
    """Number of picked requests that have not ended."""
    open_by_pool: Mapping[str, int] = field(default_factory=dict)
    """Maps each pool to the number of its picked requests that have not ended."""
    expected_cached: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Maps each pool and replica to the prompt tokens that all pickers have so far expected the engine to have
    cached."""
    sampled: int = 0
    """Number of samples since the start."""
    samples: tuple[DecisionSample, ...] = ()
    """The latest samples, newest last."""
    unsaved: str = ""
    """Reason why the affinity memory cannot be saved; empty if it can be saved."""
    lengths: Mapping[str, Factors] = field(default_factory=dict)
    """Maps each pool to its learned correction factors for prompt lengths."""
    queues: Mapping[str, QueueStatistics] = field(default_factory=dict)
    """Maps each pool that has a queue to the queue's counts."""
    waiting_tenants: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Maps each pool and tenant to the number of waiting requests; pools with no waiting requests are absent."""
    stalled: Mapping[str, list[str]] = field(default_factory=dict)
    """Maps each pool to the replicas whose engines have stopped and have made no progress since; pools without any are
    absent."""


def line(report: PickerReport) -> bytes:
    """Return the line that contains a report."""
    return wire.line(
        "report",
        reasons=list(map(list, report.reasons)),
        times={pool: [histogram.counts, histogram.total] for pool, histogram in report.times.items()},
        finished=report.finished,
        lost=report.lost,
        open=report.open,
        open_by_pool=report.open_by_pool,
        expected_cached=report.expected_cached,
        sampled=report.sampled,
        samples=[asdict(item) for item in report.samples],
        unsaved=report.unsaved,
        factors=report.lengths,  # lbctl 1.0 rejects four numbers under `lengths`
        queues={pool: _queue(counts) for pool, counts in report.queues.items()},
        waiting_tenants=report.waiting_tenants,
        stalled=report.stalled,
    )


def report_of(values: Mapping[str, Any]) -> PickerReport:
    """Return the report in a line of kind `report`. Raises WireError."""
    try:
        return PickerReport(
            reasons=tuple((pool, reason, count) for pool, reason, count in values["reasons"]),
            times={pool: DurationHistogram(BOUNDS, counts, total) for pool, (counts, total) in values["times"].items()},
            finished=values["finished"],
            lost=values["lost"],
            open=values["open"],
            open_by_pool=values["open_by_pool"],
            expected_cached=values.get("expected_cached", {}),
            sampled=values["sampled"],
            samples=tuple(DecisionSample(**item) for item in values["samples"]),
            unsaved=str(values.get("unsaved", "")),
            lengths={pool: Factors(*factors) for pool, factors in values.get("factors", {}).items()},
            queues={pool: _queue_of(counts) for pool, counts in values.get("queues", {}).items()},
            waiting_tenants=values.get("waiting_tenants", {}),
            stalled=values.get("stalled", {}),
        )
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise wire.WireError(f"a report is not in the format of this version of lbctl: {error}") from None


def _queue(counts: QueueStatistics) -> dict[str, object]:
    return {
        "waiting": counts.waiting,
        "refused_full": counts.refused_full,
        "refused_late": counts.refused_late,
        "left": counts.left,
        "waits": [counts.waits.counts, counts.waits.total],
        "tenants": {name: [waits.requests, waits.seconds] for name, waits in counts.tenants.items()},
    }


def _queue_of(values: Mapping[str, Any]) -> QueueStatistics:
    counts, total = values["waits"]
    return QueueStatistics(
        waiting=values["waiting"],
        refused_full=values["refused_full"],
        refused_late=values["refused_late"],
        left=values["left"],
        waits=DurationHistogram(WAIT_BOUNDS, counts, total),
        tenants={name: TenantWaits(*waits) for name, waits in values["tenants"].items()},
    )

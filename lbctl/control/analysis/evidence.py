"""The evidence for an analysis: requests, errors, latencies, metrics, and the evaluation of each interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lbctl.control.analysis.latency import NO_LATENCIES, LatencyHistogram

Verdict = Literal["good", "bad", "inconclusive"]
"""good: enough evidence, and the new pool is not worse. bad: the new pool is worse than chance can explain.
inconclusive: too little evidence to end the step or the rollout."""
VERDICTS: tuple[Verdict, ...] = ("good", "bad", "inconclusive")
KEPT = 20
"""Maximum number of evaluations to keep."""


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Request counts of one or more pools over a period."""

    requests: int = 0
    """Number of requests that have ended."""
    errors: int = 0
    """Number of requests that failed."""

    def __add__(self, other: RequestCounts) -> RequestCounts:
        return RequestCounts(self.requests + other.requests, self.errors + other.errors)

    @property
    def rate(self) -> float | None:
        """Fraction of requests that failed, from 0 to 1, or None without requests."""
        return self.errors / self.requests if self.requests else None


NO_REQUESTS = RequestCounts()
"""A count without requests."""


@dataclass(frozen=True, slots=True)
class MetricValues:
    """Values of a PromQL metric for the new and old pools at the same instant."""

    name: str
    """The metric's name in the fleet files."""
    max_ratio: float
    """The maximum ratio of the new value to the old one."""
    new: float | None = None
    """The new value; None if there is no usable value."""
    old: float | None = None
    """The old value; None if there is no usable value."""
    problem: str = ""
    """Human-readable reason for a missing value, or an empty string if both values exist."""

    @property
    def ratio(self) -> float | None:
        """The new value divided by the old one; None if the result is not a number."""
        if self.new is None or self.old is None:
            return None
        if self.old == 0:
            return 1.0 if self.new == 0 else None
        return self.new / self.old

    @property
    def verdict(self) -> Verdict:
        """bad: the ratio is above its limit. inconclusive: the ratio is unknown."""
        if self.ratio is None:
            return "inconclusive"
        return "bad" if self.ratio > self.max_ratio else "good"


@dataclass(frozen=True, slots=True)
class LatencyValues:
    """Latencies of the new and the old pools since the last comparison."""

    name: str
    """Name of the compared value, for example `first_byte p95`."""
    max_ratio: float
    """The maximum ratio of the new value to the old one."""
    new: float | None = None
    """Latency percentile of the new pool, in milliseconds, or None without requests."""
    old: float | None = None
    """Latency percentile across all old pools, in milliseconds, or None without requests."""
    slow_new: RequestCounts = NO_REQUESTS
    """The measured requests of the new pool; requests slower than `max_ratio` times the old percentile count as
    errors."""
    slow_old: RequestCounts = NO_REQUESTS
    """The measured requests of the old pools; requests slower than their percentile count as errors."""
    verdict: Verdict = "inconclusive"
    """Verdict based on latencies alone."""
    problem: str = ""
    """Human-readable reason for a missing verdict, or an empty string if there is a verdict."""

    @property
    def ratio(self) -> float | None:
        """The new percentile divided by the old one; None if one is unknown or the old one is 0."""
        return None if self.new is None or not self.old else self.new / self.old


@dataclass(frozen=True, slots=True)
class IntervalObservation:
    """The observations of one interval."""

    new: RequestCounts
    """The pool to which the rollout moves requests."""
    old: RequestCounts
    """The other pools in the split, combined."""
    reporting: int = 0
    """Proxies that report their request counts."""
    silent: tuple[str, ...] = ()
    """Proxies that reported earlier but are not reporting now."""
    metrics: tuple[MetricValues, ...] = ()
    """The PromQL metrics, by name."""
    latency_new: LatencyHistogram = NO_LATENCIES
    """The latencies of the new pool, if the analysis compares them."""
    latency_old: LatencyHistogram = NO_LATENCIES
    """Combined latencies of the old pools."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The verdict on one interval, with the numbers behind it."""

    at: float
    """The time of the evaluation, in seconds since the epoch."""
    step: int
    """Index of the rollout's step."""
    verdict: Verdict
    """The verdict on the interval."""
    reason: str
    """Human-readable reason for the verdict."""
    new: RequestCounts = NO_REQUESTS
    """Requests to the rollout's target pool since the last comparison."""
    old: RequestCounts = NO_REQUESTS
    """Requests to the split's other pools since the last comparison."""
    metrics: tuple[MetricValues, ...] = ()
    """The PromQL metrics, by name."""
    tested: bool = False
    """Whether enough requests were available for a comparison. If not, they are carried over to the next interval."""
    latency: LatencyValues | None = None
    """The latencies; None if they are not compared."""


@dataclass(frozen=True, slots=True)
class AnalysisState:
    """The state of the analysis of a running rollout."""

    evaluations: tuple[Evaluation, ...] = ()
    """The most recent evaluations, oldest first."""
    tests: int = 0
    """Number of intervals with enough requests for a comparison, across the whole rollout."""
    failures: int = 0
    """Number of consecutive bad evaluations; inconclusive ones are ignored."""
    waiting_new: RequestCounts = NO_REQUESTS
    """Requests to the new pool since the last comparison, which are still too few for the next one."""
    waiting_old: RequestCounts = NO_REQUESTS
    """Requests to the old pools since the last comparison, which are still too few for the next one."""
    step_new: RequestCounts = NO_REQUESTS
    """Requests to the new pool since the step began or was resumed."""
    step_old: RequestCounts = NO_REQUESTS
    """Requests to the old pools since the step began or was resumed."""
    waiting_latency_new: LatencyHistogram = NO_LATENCIES
    """Latencies of the new pool since the last comparison, which are still too few for the next one."""
    waiting_latency_old: LatencyHistogram = NO_LATENCIES
    """Latencies of the old pools since the last comparison, which are still too few for the next one."""
    step_slow_new: RequestCounts = NO_REQUESTS
    """Measured requests to the new pool since the step began or was resumed; slow requests count as errors."""
    step_slow_old: RequestCounts = NO_REQUESTS
    """Measured requests to the old pools since the step began or was resumed; slow requests count as errors."""
    good: int = 0
    """Number of good evaluations in the rollout."""
    bad: int = 0
    """Number of bad evaluations in the rollout."""
    inconclusive: int = 0
    """Number of inconclusive evaluations in the rollout."""

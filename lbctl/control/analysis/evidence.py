"""Evidence of an analysis: requests, errors, latencies, metrics, and the evaluations of the intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lbctl.control.analysis.latency import NO_LATENCIES, LatencyHistogram

Verdict = Literal["good", "bad", "inconclusive"]
"""good: there is enough evidence, and the new pool is not worse. bad: it is worse beyond chance. inconclusive: too
little is known; that neither ends a step nor the rollout."""
VERDICTS: tuple[Verdict, ...] = ("good", "bad", "inconclusive")
KEPT = 20
"""Evaluations that are kept."""


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Requests of a pool, or of several, in some time."""

    requests: int = 0
    """Requests that have ended."""
    errors: int = 0
    """Those among them that failed."""

    def __add__(self, other: RequestCounts) -> RequestCounts:
        return RequestCounts(self.requests + other.requests, self.errors + other.errors)

    @property
    def rate(self) -> float | None:
        """The part of the requests that failed, 0…1; None without requests."""
        return self.errors / self.requests if self.requests else None


NO_REQUESTS = RequestCounts()
"""No requests at all."""


@dataclass(frozen=True, slots=True)
class MetricValues:
    """The values of a PromQL metric for both sides at the same instant."""

    name: str
    """Its name in the files."""
    max_ratio: float
    """The largest ratio of the new value to the old one."""
    new: float | None = None
    """None where there is no usable value."""
    old: float | None = None
    """None where there is no usable value."""
    problem: str = ""
    """Why a value is missing, for people; empty where both are there."""

    @property
    def ratio(self) -> float | None:
        """The new value divided by the old one; None if that is not a number."""
        if self.new is None or self.old is None:
            return None
        if self.old == 0:
            return 1.0 if self.new == 0 else None
        return self.new / self.old

    @property
    def verdict(self) -> Verdict:
        """bad: the ratio is above its limit. inconclusive: there is no ratio."""
        if self.ratio is None:
            return "inconclusive"
        return "bad" if self.ratio > self.max_ratio else "good"


@dataclass(frozen=True, slots=True)
class LatencyValues:
    """The latencies of both sides since the last comparison."""

    name: str
    """Name of the compared value, for example `first_byte p95`."""
    max_ratio: float
    """The largest ratio of the new value to the old one."""
    new: float | None = None
    """The percentile of the new pool in milliseconds; None without requests."""
    old: float | None = None
    """The percentile of the old pools together in milliseconds; None without requests."""
    slow_new: RequestCounts = NO_REQUESTS
    """The measured requests of the new pool, and as errors those above `max_ratio` times the old percentile."""
    slow_old: RequestCounts = NO_REQUESTS
    """The measured requests of the old pools, and as errors those above their percentile."""
    verdict: Verdict = "inconclusive"
    """The verdict on the latencies alone."""
    problem: str = ""
    """Why there is no verdict, for people; empty where there is one."""

    @property
    def ratio(self) -> float | None:
        """The new percentile divided by the old one; None where one is unknown or the old one is 0."""
        return None if self.new is None or not self.old else self.new / self.old


@dataclass(frozen=True, slots=True)
class IntervalObservation:
    """Observations of one interval."""

    new: RequestCounts
    """The pool that the rollout moves to."""
    old: RequestCounts
    """The other pools of the split together."""
    reporting: int = 0
    """Proxies that report their requests."""
    silent: tuple[str, ...] = ()
    """Proxies that have reported and do not any more."""
    metrics: tuple[MetricValues, ...] = ()
    """The PromQL metrics, by name."""
    latency_new: LatencyHistogram = NO_LATENCIES
    """The latencies of the new pool, where the analysis compares them."""
    latency_old: LatencyHistogram = NO_LATENCIES
    """The latencies of the old pools together."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The verdict on one interval, with the numbers that it was made of."""

    at: float
    """In seconds since the epoch."""
    step: int
    """Index of the rollout's step."""
    verdict: Verdict
    """The verdict on the interval."""
    reason: str
    """Why, for people."""
    new: RequestCounts = NO_REQUESTS
    """The pool that the rollout moves to, since the last comparison."""
    old: RequestCounts = NO_REQUESTS
    """The other pools of the split together, since the last comparison."""
    metrics: tuple[MetricValues, ...] = ()
    """The PromQL metrics, by name."""
    tested: bool = False
    """Whether there were enough requests for a comparison. Otherwise they count again in the next interval."""
    latency: LatencyValues | None = None
    """The latencies; None where they are not compared."""


@dataclass(frozen=True, slots=True)
class AnalysisState:
    """State of the analysis of a running rollout."""

    evaluations: tuple[Evaluation, ...] = ()
    """The last ones, the oldest first."""
    tests: int = 0
    """Intervals of the whole rollout that had enough requests for a comparison."""
    failures: int = 0
    """Bad evaluations in a row; inconclusive ones do not count."""
    waiting_new: RequestCounts = NO_REQUESTS
    """Requests since the last comparison, too few for another one."""
    waiting_old: RequestCounts = NO_REQUESTS
    """The same of the old pools."""
    step_new: RequestCounts = NO_REQUESTS
    """Requests since the step began or was resumed."""
    step_old: RequestCounts = NO_REQUESTS
    """The same of the old pools."""
    waiting_latency_new: LatencyHistogram = NO_LATENCIES
    """Latencies of the new pool since the last comparison, too few for another one."""
    waiting_latency_old: LatencyHistogram = NO_LATENCIES
    """The same of the old pools."""
    step_slow_new: RequestCounts = NO_REQUESTS
    """Measured requests since the step began or was resumed, and as errors the slow ones among them."""
    step_slow_old: RequestCounts = NO_REQUESTS
    """The same of the old pools."""
    good: int = 0
    """Good evaluations of the rollout."""
    bad: int = 0
    """Bad evaluations of the rollout."""
    inconclusive: int = 0
    """Inconclusive evaluations of the rollout."""

"""Latency histograms for each stage between a sample and the resulting weight in a proxy."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Histogram

_DECISION_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25)
_SAMPLE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5)
_ACK_LIMIT = 10.0
"""Seconds during which an acknowledgement is attributed to the most recent weights."""


class LatencyMetrics:
    """Measures the stages from sample to decision, sending and acknowledgement.

    Times are in seconds on the scraper's clock.
    """

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sampled_at: float | None = None
        self._sending_at = 0.0
        self._step = Histogram(
            "lbctl_decision_seconds",
            "The time taken by one decision about all reported samples.",
            buckets=_DECISION_BUCKETS,
            registry=registry,
        )
        self._decided = self._histogram(registry, "decision", "The time from a sample to the resulting decision.")
        self._sent = self._histogram(registry, "sent", "The time from a sample until the resulting weights were sent.")
        self._acked = self._histogram(
            registry, "acked", "The time from a sample until an Envoy acknowledged the resulting weights."
        )

    @staticmethod
    def _histogram(registry: CollectorRegistry, stage: str, description: str) -> Histogram:
        return Histogram(f"lbctl_sample_to_{stage}_seconds", description, buckets=_SAMPLE_BUCKETS, registry=registry)

    def decided(self, took: float, age: float) -> None:
        """Record a decision. `took` is its duration, and `age` is the age of its newest sample; both are in seconds."""
        self._step.observe(took)
        self._decided.observe(max(0.0, age))

    def sending(self, sampled_at: float | None) -> None:
        """Record that weights are about to be sent.

        `sampled_at`: the time at which the underlying sample was taken; None if there is none.
        """
        self._sampled_at, self._sending_at = sampled_at, self._clock()

    def sent(self) -> None:
        """Record that the weights have been passed to the proxies' streams."""
        if self._sampled_at is not None:
            self._sent.observe(self._clock() - self._sampled_at)

    def acked(self, seconds: float) -> None:
        """Record that an Envoy acknowledged endpoints `seconds` after they were sent."""
        now = self._clock()
        is_of_these = now - seconds >= self._sending_at and now - self._sending_at < _ACK_LIMIT
        if self._sampled_at is not None and is_of_these:
            self._acked.observe(now - self._sampled_at)

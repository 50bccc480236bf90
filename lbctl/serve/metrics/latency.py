"""How long each stage takes from a sample to a weight that a proxy has, as the control plane's metrics."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Histogram

_STEP = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25)
_SINCE = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5)
_STILL = 10.0
"""Seconds after which an acknowledgement is of something else."""


class LatencyMetrics:
    """sample → decided → sent → acknowledged. Times are seconds on the scraper's clock."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sampled: float | None = None
        self._sending_at = 0.0
        self._step = Histogram(
            "lbctl_decision_seconds",
            "Making one decision about all that was reported.",
            buckets=_STEP,
            registry=registry,
        )
        self._decided = self._since(registry, "decision", "From a sample to the decision about it.")
        self._sent = self._since(registry, "sent", "From a sample to the weights that it has changed being sent.")
        self._acked = self._since(
            registry, "acked", "From a sample to an Envoy's acknowledgement of what it has changed."
        )

    @staticmethod
    def _since(registry: CollectorRegistry, stage: str, words: str) -> Histogram:
        return Histogram(f"lbctl_sample_to_{stage}_seconds", words, buckets=_SINCE, registry=registry)

    def decided(self, took: float, age: float) -> None:
        """`age`: of the newest sample in it."""
        self._step.observe(took)
        self._decided.observe(max(0.0, age))

    def sending(self, sampled: float | None) -> None:
        """What is sent from now on is of that sample; None: of none."""
        self._sampled, self._sending_at = sampled, self._clock()

    def sent(self) -> None:
        """It is with the proxies' streams."""
        if self._sampled is not None:
            self._sent.observe(self._clock() - self._sampled)

    def acked(self, seconds: float) -> None:
        """An Envoy has acknowledged endpoints `seconds` after they were sent."""
        now = self._clock()
        fresh = now - seconds >= self._sending_at and now - self._sending_at < _STILL
        if self._sampled is not None and fresh:
            self._acked.observe(now - self._sampled)

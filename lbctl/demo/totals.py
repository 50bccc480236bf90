"""Running totals for all requests in a load, updated as requests end, so that the cost does not grow during a run."""

from __future__ import annotations

import time
from collections import Counter

from lbctl.control.analysis.latency import LatencyHistogram, bucket
from lbctl.demo.load import LoadGenerator, SentRequest

SLOW = 1.0
"""Time without a first token after which a request counts as slow, in seconds."""


class Totals:
    """The requests in a load so far. Times to the first token are stored with a resolution of 4.4 %."""

    def __init__(self, load: LoadGenerator) -> None:
        self._load = load
        self._ended = Counter[int]()
        self._failed = 0
        self._slow = 0
        self._read = 0
        self._open: list[SentRequest] = []

    @property
    def requests(self) -> int:
        """Number of requests sent."""
        return self._read

    @property
    def failed(self) -> int:
        """Number of failed requests."""
        return self._failed

    @property
    def slow_share(self) -> float:
        """Share of requests that failed or waited longer than `SLOW` seconds for their first token."""
        slow = self._slow + sum(map(self._is_slow, self._open))
        return slow / self._read if self._read else 0.0

    def update(self) -> None:
        """Add the requests that have been sent or have ended since the last call."""
        self._open += self._load.sent[self._read :]
        self._read = len(self._load.sent)
        ended = [item for item in self._open if item.failed or item.last is not None]
        self._open = [item for item in self._open if not item.failed and item.last is None]
        self._failed += sum(item.failed for item in ended)
        self._slow += sum(map(self._is_slow, ended))
        self._ended.update(map(self._bucket, ended))

    def first_token(self, percentile: float) -> float:
        """Return the time-to-first-token percentile (0 to 100) in seconds, or 0 without requests."""
        every = LatencyHistogram(self._ended + Counter(map(self._bucket, self._open)))
        return (every.percentile(percentile / 100) or 0.0) / 1000

    def _bucket(self, item: SentRequest) -> int:
        return bucket(1000 * self._waited(item))

    def _is_slow(self, item: SentRequest) -> bool:
        return item.failed or self._waited(item) > SLOW

    def _waited(self, item: SentRequest) -> float:
        return self._load.patience if item.failed else (item.first or time.monotonic()) - item.at

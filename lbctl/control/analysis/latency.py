"""Bounded-size histograms of the latencies that proxies measure and that analyses compare."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

STEPS_OF_TWO = 16
"""Number of buckets per doubling of the latency, which makes each bucket 4.4 % wide."""
LAST_BUCKET = 24 * STEPS_OF_TWO
"""The last bucket, which contains all latencies of 4.7 hours or more."""


def bucket(milliseconds: float) -> int:
    """Return the bucket for a latency. All latencies up to 1 ms are in the first bucket."""
    return min(LAST_BUCKET, int(math.log2(milliseconds) * STEPS_OF_TWO) + 1) if milliseconds >= 1 else 0


def _bounds(number: int) -> tuple[float, float]:
    """Return the lower and upper latency bounds of a bucket."""
    return 2 ** ((number - 1) / STEPS_OF_TWO) if number else 0.0, float(2 ** (number / STEPS_OF_TWO))


@dataclass(frozen=True, slots=True)
class LatencyHistogram:
    """The distribution of request latencies."""

    counts: Mapping[int, int] = field(default_factory=dict, hash=False)
    """Maps each bucket to its number of requests. Empty buckets are omitted."""

    def __add__(self, other: LatencyHistogram) -> LatencyHistogram:
        if not other.counts:
            return self
        counts = dict(self.counts)
        for key, count in other.counts.items():
            counts[key] = counts.get(key, 0) + count
        return LatencyHistogram(counts)

    def since(self, earlier: LatencyHistogram) -> LatencyHistogram:
        """Return the requests added since `earlier`, or all requests if `earlier` has more."""
        if any(count > self.counts.get(key, 0) for key, count in earlier.counts.items()):
            return self
        gained = ((key, count - earlier.counts.get(key, 0)) for key, count in self.counts.items())
        return LatencyHistogram({key: count for key, count in gained if count})

    @property
    def requests(self) -> int:
        """The total number of requests."""
        return sum(self.counts.values())

    def percentile(self, share: float) -> float | None:
        """Return the milliseconds not exceeded by this share (0…1) of the requests, or None without requests."""
        number = self._bucket_of(share)
        if number is None:
            return None
        below, there = self._below(number), self.counts[number]
        low, high = _bounds(number)
        return low + (high - low) * (share * self.requests - below) / there

    def limit(self, share: float) -> float:
        """Return the upper bound of the bucket that contains this percentile, or infinity without requests."""
        number = self._bucket_of(share)
        return math.inf if number is None else _bounds(number)[1]

    def above(self, milliseconds: float) -> int:
        """Return the number of requests that took longer than this, assuming that each bucket is filled uniformly."""
        number = bucket(milliseconds)
        low, high = _bounds(number)
        part = (high - milliseconds) / (high - low) * self.counts.get(number, 0)
        return round(max(0.0, part)) + sum(count for key, count in self.counts.items() if key > number)

    def _bucket_of(self, share: float) -> int | None:
        wanted, cumulative = share * self.requests, 0
        for key in sorted(self.counts):
            cumulative += self.counts[key]
            if cumulative >= wanted:
                return key
        return None

    def _below(self, number: int) -> int:
        return sum(count for key, count in self.counts.items() if key < number)


NO_LATENCIES = LatencyHistogram()


def histogram(latencies: Iterable[float]) -> LatencyHistogram:
    """Return a histogram of these latencies, which are in milliseconds."""
    counts: dict[int, int] = {}
    for each in latencies:
        counts[bucket(each)] = counts.get(bucket(each), 0) + 1
    return LatencyHistogram(counts)

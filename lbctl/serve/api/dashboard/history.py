"""In-memory history for the charts: each sample has one array per metric, covering all replicas.

Memory use is bounded regardless of the size of the fleet and the length of the history. Samples are `MIN_INTERVAL`
seconds apart if they fit into the memory limit, and further apart otherwise. With 1,000 replicas, an hour takes 720
samples of 36 kB each (26 MB); with 10,000 replicas, it takes 93 samples of 360 kB each. The history is empty after a
restart.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import cast

from lbctl.api import schema
from lbctl.api.fields import choices

MIN_INTERVAL = 5.0
"""Minimum time between two samples, in seconds."""
BUDGET = 32 * 1024 * 1024
"""Maximum total size of the samples, in bytes."""
MAX_SAMPLES = 720
METRICS = cast(tuple[schema.SeriesMetric, ...], choices(schema.SeriesMetric))
STATES = (
    "in", "ramping", "slow", "hot", "unknown", "starting", "asleep", "draining", "drained", "ejected", "down",
    "removed",
)  # fmt: skip
"""The states in numeric order, from best to worst."""
_STATE_NUMBERS = {name: float(number) for number, name in enumerate(STATES)}
_BYTES_A_REPLICA = len(METRICS) * array("f").itemsize


@dataclass(frozen=True, slots=True)
class SampleLayout:
    """The position of each replica in a sample's arrays."""

    names: Mapping[str, tuple[str, ...]]
    """Maps each pool to its replicas, in fleet order."""
    starts: Mapping[str, int]
    """Maps each pool to the position of its first replica."""
    size: int
    """Number of replicas."""

    @classmethod
    def of(cls, rows: Iterable[schema.LiveReplica]) -> SampleLayout:
        """Return the layout of these rows, which are grouped by pool."""
        names: dict[str, list[str]] = {}
        starts: dict[str, int] = {}
        size = 0
        for size, row in enumerate(rows, 1):
            starts.setdefault(row.pool, size - 1)
            names.setdefault(row.pool, []).append(row.name)
        return cls({pool: tuple(each) for pool, each in names.items()}, starts, size)


@dataclass(frozen=True, slots=True)
class HistorySample:
    """The values of all replicas at one point in time."""

    at: float
    """Time of the sample, in seconds since the epoch."""
    layout: SampleLayout
    """The layout of the arrays."""
    columns: Mapping[schema.SeriesMetric, array[float]]
    """Maps each metric to its values by replica; NaN if a value was unknown."""

    def of_pool(self, pool: str, metric: schema.SeriesMetric) -> Sequence[float]:
        """Return the values for a pool's replicas, in the layout's order; empty if the pool did not exist."""
        start = self.layout.starts.get(pool)
        return () if start is None else self.columns[metric][start : start + len(self.layout.names[pool])]


class SampleHistory:
    """The samples of the last `seconds`."""

    def __init__(self, budget: int = BUDGET) -> None:
        self._budget = budget
        self._samples: list[HistorySample] = []

    @property
    def samples(self) -> tuple[HistorySample, ...]:
        """The samples, oldest first."""
        return tuple(self._samples)

    def due(self, now: float, seconds: float, replicas: int) -> bool:
        """Return whether it is time for the next sample. `seconds`: time for which samples are kept.

        The result is also true if the clock was set back, because `add` then drops the samples with later times.
        """
        if not self._samples or now < self._samples[-1].at:
            return True
        return now - self._samples[-1].at >= interval(seconds, replicas, self._budget) - 0.5

    def add(self, now: float, rows: Sequence[schema.LiveReplica], seconds: float) -> None:
        """Add a sample of these rows, grouped by pool, and drop samples that are too old or exceed the memory limit."""
        layout = SampleLayout.of(rows)
        if self._samples and self._samples[-1].layout == layout:
            layout = self._samples[-1].layout
        self._samples.append(HistorySample(now, layout, {metric: _column(metric, rows) for metric in METRICS}))
        self._samples = [item for item in self._samples if now - seconds < item.at <= now]
        if self._bytes() > self._budget:
            del self._samples[-2::-2]

    def _bytes(self) -> int:
        return sum(item.layout.size for item in self._samples) * _BYTES_A_REPLICA


def interval(seconds: float, replicas: int, budget: int = BUDGET) -> float:
    """Return the sampling interval in seconds for this many replicas if samples are kept for `seconds`."""
    samples = min(MAX_SAMPLES, max(2, budget // (_BYTES_A_REPLICA * max(1, replicas))))
    return max(MIN_INTERVAL, seconds / samples)


def _column(metric: schema.SeriesMetric, rows: Iterable[schema.LiveReplica]) -> array[float]:
    if metric == "state":
        return array("f", (_STATE_NUMBERS.get(row.state, nan) for row in rows))
    return array("f", (nan if (value := getattr(row, metric)) is None else value for row in rows))

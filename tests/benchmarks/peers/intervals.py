"""Intervals of 95 % confidence: of a mean, and of the difference between two systems with the same seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5th percentiles of Student's distribution with 1, 2, … degrees of freedom."""
MAX_SEEDS = len(_STUDENT) + 1


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate between the ends of its interval."""

    low: float
    middle: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Return whether the difference is unlikely to be chance."""
        return self.low > 0 or self.high < 0


def mean_of(values: Sequence[float]) -> Interval:
    """Return the mean of 2 to `MAX_SEEDS` independent values, by Student's t distribution."""
    middle = statistics.fmean(values)
    reach = _STUDENT[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(middle - reach, middle, middle + reach)


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Return the mean difference of pairs of values. Each pair has the same seed."""
    return mean_of([one - other for one, other in zip(ours, theirs, strict=True)])

"""Intervals of 95 % confidence: of the difference between two systems with the same seeds, and of a percentile."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from lbctl.base.percentiles import rank

_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5th percentiles of Student's distribution with 1, 2, … degrees of freedom."""
MAX_SEEDS = len(_STUDENT) + 1
_NORMAL = 1.96


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

    def relative_to(self, whole: float) -> Interval:
        """Return the interval as a fraction of `whole`."""
        return Interval(self.low / whole, self.middle / whole, self.high / whole)


def mean_of(values: Sequence[float]) -> Interval:
    """Return the mean of 2 to `MAX_SEEDS` independent values, by Student's t distribution."""
    middle = statistics.fmean(values)
    reach = _STUDENT[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(middle - reach, middle, middle + reach)


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Return the mean difference of pairs of values. Each pair has the same seed."""
    return mean_of([one - other for one, other in zip(ours, theirs, strict=True)])


def percentile(tail: Sequence[float], count: int, part: float) -> Interval:
    """Return a percentile (0 to 100) of `count` values, from the largest ones in descending order.

    The ends are values too: the number of values above the true percentile is binomially distributed, approximately
    normally for many values. An end that is not in the tail is the last value of the tail.
    """
    reach = _NORMAL * math.sqrt(count * part / 100 * (1 - part / 100))
    place = count - 1 - rank(count, part)
    low, high = min(len(tail) - 1, math.ceil(place + reach)), max(0, math.floor(place - reach))
    return Interval(tail[low], tail[place], tail[high])

"""Percentiles by the nearest rank: the smallest value that at least so many percent of the values do not exceed."""

from __future__ import annotations

import math
from collections.abc import Iterable


def rank(count: int, percentile: float) -> int:
    """Return the place of a percentile, 0 to 100, among so many sorted values; `count` is at least 1."""
    return max(1, math.ceil(count * percentile / 100)) - 1


def percentile_of(values: Iterable[float], percentile: float) -> float:
    """Return a percentile, 0 to 100, of the values; 0 where there are none."""
    ordered = sorted(values)
    return ordered[rank(len(ordered), percentile)] if ordered else 0.0

"""Nearest-rank percentiles. A percentile is the smallest value not exceeded by the given percentage of the values."""

from __future__ import annotations

import math
from collections.abc import Iterable


def rank(count: int, percentile: float) -> int:
    """Return the index of a percentile (0 to 100) among `count` sorted values. `count` must be at least 1."""
    return max(1, math.ceil(count * percentile / 100)) - 1


def percentile_of(values: Iterable[float], percentile: float) -> float:
    """Return a percentile (0 to 100) of the values, or 0 if there are none."""
    ordered = sorted(values)
    return ordered[rank(len(ordered), percentile)] if ordered else 0.0

"""Capacities (any positive numbers) as the whole numbers that a proxy accepts as weights.

Where the ratios fit exactly into the proxy's range, they stay exact (5 : 5 : 2 : 2 becomes 100 : 100 : 40 : 40, so that
a later percentage of a weight has resolution). Otherwise the range is shared out by largest remainder (Hamilton's
method: whole parts first, the rest to the largest fractions).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

_FINE = 100
"""Exact weights are scaled up until the largest is about this, so that one percent of it is one step."""


def quantise(shares: Sequence[float], maximum: int) -> list[int]:
    """Return whole weights in 1…`maximum`, in the order of `shares` (all > 0)."""
    if not shares:
        return []
    exact = _exact(shares, maximum)
    return exact if exact is not None else _largest_remainder(shares, maximum)


def rounding_error(shares: Sequence[float], weights: Sequence[int]) -> list[float]:
    """Return, for each weight, the relative error of its share: 0.02 is 2 % off."""
    whole, total = sum(shares), sum(weights)
    return [abs(w / total - s / whole) / (s / whole) for s, w in zip(shares, weights, strict=True)]


def _exact(shares: Sequence[float], maximum: int) -> list[int] | None:
    integers = _integers(shares)
    divisor = math.gcd(*integers)
    largest = max(integers) // divisor
    if largest > maximum:
        return None
    factor = max(1, min(_FINE, maximum) // largest)
    return [share // divisor * factor for share in integers]


def _integers(shares: Sequence[float]) -> list[int]:
    """Return whole numbers in exactly the ratios of the decimal notation of `shares`."""
    parts = [repr(float(share)).partition(".") for share in shares]
    if any("e" in fraction or "e" in integer for integer, _, fraction in parts):
        fractions = [Fraction(str(share)) for share in shares]
        scale = math.lcm(*{item.denominator for item in fractions})
        return [int(item * scale) for item in fractions]
    digits = max(len(fraction) for _, _, fraction in parts)
    return [int(integer + fraction.ljust(digits, "0")) for integer, _, fraction in parts]


def _largest_remainder(shares: Sequence[float], maximum: int) -> list[int]:
    scale = maximum / max(shares)
    ideal = [share * scale for share in shares]
    weights = [max(1, math.floor(item)) for item in ideal]
    remaining = round(sum(ideal)) - sum(weights)
    by_remainder = sorted(range(len(ideal)), key=lambda i: (weights[i] - ideal[i], i))
    for index in by_remainder[: max(0, remaining)]:
        if weights[index] < maximum:
            weights[index] += 1
    return weights

"""Capacities (any positive numbers) as the whole numbers that a proxy's weights are.

Where the ratios are exact within the proxy's range, they stay exact (5 : 5 : 2 : 2 becomes 100 : 100 : 40 : 40, so that
a later percentage of a weight has resolution). Else the range is shared out by largest remainder (Hamilton's method:
whole parts first, what is left over to the largest fractions).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

_FINE = 100
"""The largest weight is scaled up to about this where the ratios are exact: a percent of it is then a step."""


def quantise(shares: Sequence[float], maximum: int) -> list[int]:
    """Whole weights in 1…`maximum`, in the order of `shares` (all > 0)."""
    if not shares:
        return []
    exact = _exact(shares, maximum)
    return exact if exact is not None else _largest_remainder(shares, maximum)


def rounding_error(shares: Sequence[float], weights: Sequence[int]) -> list[float]:
    """For each, how far its share of the whole is from the promised one, relative to that: 0.02 is 2 %."""
    whole, total = sum(shares), sum(weights)
    return [abs(w / total - s / whole) / (s / whole) for s, w in zip(shares, weights, strict=True)]


def _exact(shares: Sequence[float], maximum: int) -> list[int] | None:
    whole = _whole(shares)
    divisor = math.gcd(*whole)
    most = max(whole) // divisor
    if most > maximum:
        return None
    factor = max(1, min(_FINE, maximum) // most)
    return [share // divisor * factor for share in whole]


def _whole(shares: Sequence[float]) -> list[int]:
    """The same ratios in whole numbers: what is written is what is meant, digit by digit."""
    parts = [repr(float(share)).partition(".") for share in shares]
    if any("e" in fraction or "e" in before for before, _, fraction in parts):
        fractions = [Fraction(str(share)) for share in shares]
        scale = math.lcm(*{item.denominator for item in fractions})
        return [int(item * scale) for item in fractions]
    digits = max(len(fraction) for _, _, fraction in parts)
    return [int(before + fraction.ljust(digits, "0")) for before, _, fraction in parts]


def _largest_remainder(shares: Sequence[float], maximum: int) -> list[int]:
    scale = maximum / max(shares)
    ideal = [share * scale for share in shares]
    weights = [max(1, math.floor(item)) for item in ideal]
    left = round(sum(ideal)) - sum(weights)
    by_remainder = sorted(range(len(ideal)), key=lambda i: (weights[i] - ideal[i], i))
    for index in by_remainder[: max(0, left)]:
        if weights[index] < maximum:
            weights[index] += 1
    return weights

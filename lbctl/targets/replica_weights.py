"""The proxies' weights for each algorithm, as integers that they accept, and their rounding errors (LB206).

Each replica should complete requests at its `rate`, so it has `rate` × request duration requests in flight. A proxy
that distributes requests as they arrive needs each replica's rate as its weight. A proxy that distributes requests in
flight needs each replica's room as its weight. A replica at half speed takes twice as long for each request, so half
the weight would leave it a quarter of the requests. Envoy's least request is in between: it gives each replica weight ÷
(requests there + 1), so the weight must be the product of both.

A replica's room is the number of requests that it processes at the same time. Replicas with few slots all have the same
room, whatever their rates, because additional requests in flight would only wait (`Pool.few_slots`).

The exponents of the speed are half-way between the exactly fair exponents, 0 and 1, and the exponents that treat a
slow-down as lost capacity, 1 and 2. In measurements with the real proxies, the share stays within five points of the
fair share, and the slow replica's queue is shorter; docs/develop/weighting-study.md has the numbers.

If the ratios fit exactly into the proxy's range, they stay exact. For example, 5 : 5 : 2 : 2 becomes 100 : 100 : 40 :
40, so that a later percentage of a weight has enough resolution. Otherwise, the range is distributed by the largest
remainder method (Hamilton's method: integer parts first, the rest to the largest fractions).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.weight import Weight

# ── Integers ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_FINE = 100
"""Exact weights are scaled up until the largest is about this value, so that one step is about one percent of it."""


def quantise(shares: Sequence[float], maximum: int) -> list[int]:
    """Return integer weights in 1…`maximum`, in the order of `shares` (all positive)."""
    if not shares:
        return []
    exact = _exact(shares, maximum)
    return exact if exact is not None else _largest_remainder(shares, maximum)


def rounding_error(shares: Sequence[float], weights: Sequence[int]) -> list[float]:
    """Return the relative error of each weight's share; 0.02 is 2 %."""
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
    """Return integers in exactly the ratios of `shares` in decimal notation."""
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


# ── Rounding ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_TOLERANCE = 0.02
"""Maximum relative error of a share before a warning is given."""
_HINT = "use capacities whose ratios fit the weights, or a separate pool for the much smaller replicas"


def rounded(kind: str, pool: Pool, replicas: Iterable[Replica], errors: Iterable[float]) -> Iterator[Diagnostic]:
    """Yield a warning for each replica whose share is off by more than 2 %.

    `errors` contains the relative error of each replica's share, in the order of `replicas`; 0.02 is 2 %.
    """
    for replica, error in zip(replicas, errors, strict=True):
        if error > _TOLERANCE:
            message = f"{kind} uses integer weights: the share of this replica is off by {error:.0%}"
            path = ("pools", pool.name, "replicas", replica.name)
            yield Diagnostic("LB206", message, path=path, hint=_HINT, severity="warning")


# ── Algorithms ───────────────────────────────────────────────────────────────────────────────────────────────────────

SPEED_IN_FLIGHT = 0.5
"""Exponent of the speed when requests in flight are distributed: 0 is fair, 1 treats a slow-down as lost capacity."""
SPEED_BY_DEADLINE = 1.5
"""Exponent of the speed in Envoy's least request: 1 is fair, 2 treats a slow-down as lost capacity."""
HELD_BY_DEADLINE = 1.5
"""Exponent, in Envoy's least request, of the factor by which a replica is restricted for other reasons.

1 is correct for a replica with nothing in flight, 2 for a replica with very many requests.
"""
SLOTS_IN_FLIGHT = 0.5
"""Exponent of the room when requests in flight are distributed to replicas with few slots; otherwise it is 1."""
Weights = Sequence[Weight]


def rates(weights: Weights) -> tuple[float, ...]:
    """Return the weights for round robin, random and hashing, which distribute requests as they arrive."""
    return tuple([item.rate for item in weights])


def in_flight(weights: Weights, *, few_slots: bool) -> tuple[float, ...]:
    """Return the weights for nginx's least_conn and HAProxy's leastconn, which distribute requests in flight."""
    exponent = SLOTS_IN_FLIGHT if few_slots else 1.0
    return tuple([_scaled(item, item.room**exponent, SPEED_IN_FLIGHT, 1.0) for item in weights])


def deadlines(weights: Weights, *, few_slots: bool) -> tuple[float, ...]:
    """Return the weights for Envoy's least request, which combines rate and room."""
    return tuple(
        [
            _scaled(item, item.room if few_slots else item.room * item.room, SPEED_BY_DEADLINE, HELD_BY_DEADLINE)
            for item in weights
        ]
    )


def _scaled(weight: Weight, whole: float, speed: float, held: float) -> float:
    """Return `whole`, the weight at full speed without restrictions, reduced for this replica.

    `speed` and `held` are the exponents of the two factors.
    """
    if weight.rate == weight.room and weight.speed == 1.0:
        return whole
    part: float = weight.speed**speed * weight.held**held
    return whole * part

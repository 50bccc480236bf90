"""What a weight has to be for a proxy to give what is meant: it depends on how the proxy balances.

Each replica should answer requests at its `rate`, and then has `rate` × the time of a request in flight. Who shares out
arrivals is told the rate. Who shares out requests in flight is told the room: a replica at half speed has each request
twice as long, and half the weight would leave it a quarter of the requests. Envoy's least request stands between the
two: it gives each replica weight ÷ (requests there + 1), so that its weight must be the product of both.

How many a replica carries at once is its room, where it works on many at a time. With few slots it is the same for all,
whatever they can do: then more in flight only wait (`Pool.few_slots`).

The exponents of the speed lie half-way between what is exactly fair, 0 and 1, and a lost capacity, 1 and 2. Measured
with the real proxies, the share stays within five points of the fair one and the slow one's queue is shorter:
docs/weighting.md has the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from lbctl.ir.weight import Weight

SPEED_IN_FLIGHT = 0.5
"""Exponent of the speed where requests in flight are shared out: 0 is fair, 1 treats a slow-down as a lost capacity."""
SPEED_BY_DEADLINE = 1.5
"""Exponent of the speed in Envoy's least request: 1 is fair, 2 treats a slow-down as a lost capacity."""
HELD_BY_DEADLINE = 1.5
"""Exponent of what else holds a replica back, in Envoy's least request: 1 is right for a replica with nothing in
flight, 2 for one with very many."""
SLOTS_IN_FLIGHT = 0.5
"""Exponent of the room where requests in flight are shared out to replicas with few slots, else 1."""
Weights = Sequence[Weight]


def rates(weights: Weights) -> tuple[float, ...]:
    """Round robin, random, a hash: arrivals are shared out."""
    return tuple([item.rate for item in weights])


def in_flight(weights: Weights, *, few_slots: bool) -> tuple[float, ...]:
    """nginx's least_conn, HAProxy's leastconn: requests in flight are shared out."""
    exponent = SLOTS_IN_FLIGHT if few_slots else 1.0
    return tuple([_shaped(item, item.room**exponent, SPEED_IN_FLIGHT, 1.0) for item in weights])


def deadlines(weights: Weights, *, few_slots: bool) -> tuple[float, ...]:
    """Envoy's least request: rate and room together."""
    return tuple(
        [
            _shaped(item, item.room if few_slots else item.room * item.room, SPEED_BY_DEADLINE, HELD_BY_DEADLINE)
            for item in weights
        ]
    )


def _shaped(weight: Weight, whole: float, speed: float, held: float) -> float:
    """`whole`: at full speed and with nothing held back; `speed`, `held`: exponents."""
    if weight.rate == weight.room and weight.speed == 1.0:
        return whole
    part: float = weight.speed**speed * weight.held**held
    return whole * part

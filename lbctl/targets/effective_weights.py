"""The weight that makes a proxy give each replica its intended share; it depends on how the proxy balances.

Each replica should answer requests at its `rate`, and then has `rate` × the duration of a request in flight. A proxy
that shares out arrivals needs the rate as weight. A proxy that shares out requests in flight needs the room as weight:
a replica at half speed holds each request twice as long, and half the weight would leave it a quarter of the requests.
Envoy's least request lies between the two: it gives each replica weight ÷ (requests there + 1), so its weight must be
the product of both.

The room of a replica is how many requests it works on at once. A replica with few slots has the same room as every
other, whatever its rate: more requests in flight would only wait (`Pool.few_slots`).

The exponents of the speed lie half-way between the exactly fair ones, 0 and 1, and the ones that treat a slow-down as
lost capacity, 1 and 2. Measured with the real proxies, the share stays within five points of the fair one and the queue
of the slow replica is shorter: docs/weighting.md has the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from lbctl.ir.weight import Weight

SPEED_IN_FLIGHT = 0.5
"""Exponent of the speed where requests in flight are shared out: 0 is fair, 1 treats it as lost capacity."""
SPEED_BY_DEADLINE = 1.5
"""Exponent of the speed in Envoy's least request: 1 is fair, 2 treats a slow-down as lost capacity."""
HELD_BY_DEADLINE = 1.5
"""Exponent, in Envoy's least request, of the factor by which a replica is held back for other reasons.

1 is right for a replica with nothing in flight, 2 for one with very many requests.
"""
SLOTS_IN_FLIGHT = 0.5
"""Exponent of the room where requests in flight are shared out to replicas with few slots; otherwise it is 1."""
Weights = Sequence[Weight]


def rates(weights: Weights) -> tuple[float, ...]:
    """Return the weights for round robin, random and hash, which share out arrivals."""
    return tuple([item.rate for item in weights])


def in_flight(weights: Weights, *, few_slots: bool) -> tuple[float, ...]:
    """Return the weights for nginx's least_conn and HAProxy's leastconn, which share out requests in flight."""
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
    """Return `whole`, the weight at full speed and with nothing held back, scaled down for this replica.

    `speed` and `held` are the exponents of the two factors.
    """
    if weight.rate == weight.room and weight.speed == 1.0:
        return whole
    part: float = weight.speed**speed * weight.held**held
    return whole * part

"""Slow start, which gradually increases the weight of a replica that is new or was down."""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

_Name = TypeVar("_Name", bound=Hashable)
_MIN_AVAILABLE = 0.5
"""Fraction of the capacity that slow start leaves in use, so that no replica gets more than twice its usual share.

docs/develop/decisions/0096-slow-start-leaves-half-of-the-capacity.md describes the simulations behind this value.
"""


@dataclass(frozen=True, slots=True)
class SlowStart:
    """The gradual increase of a new replica's weight."""

    window: int = 60_000
    """Duration of the ramp."""
    min_weight: float = 10.0
    """Initial weight, in percent."""
    aggression: float = 1.0
    """Exponent of the ramp, where 1.0 is linear."""

    def factor(self, age: float) -> float:
        """Return Envoy's weight factor for a replica that joined `age` seconds ago, or 1 after the ramp."""
        part = age * 1000 / self.window if self.window else 1.0
        if part >= 1.0:
            return 1.0
        ramped: float = max(part, 0.0) ** (1.0 / self.aggression)
        return max(self.min_weight / 100, ramped)


def relief(total: float, full: float, capacity: float) -> float:
    """Return the fraction (0 to 1) of the missing weight that is added for every replica in slow start.

    The fraction is 0 if at least half of the capacity is in use without it.

    `total` is the sum of the available replicas' weights with slow start, and `full` is the sum without it. `capacity`
    is the sum without slow start if all replicas were available.
    """
    least = min(full, _MIN_AVAILABLE * capacity)
    if total >= least:
        return 0.0
    return 1.0 if least >= full else (least - total) / (full - total)


def relieved(
    factors: Mapping[_Name, float], rates: Mapping[_Name, float], drained: Container[_Name]
) -> dict[_Name, float]:
    """Return the factors below 1 after `relief`, by replica.

    `factors` maps each replica to its factor below 1. `rates` maps each replica to its weight without slow start, for
    the replicas that are used together. `drained` contains the replicas that are not available.
    """
    available = {name: rate for name, rate in rates.items() if name not in drained}
    total = sum(rate * factors.get(name, 1.0) for name, rate in available.items())
    part = relief(total, sum(available.values()), sum(rates.values()))
    ramped = {name: before + part * (1.0 - before) for name, before in factors.items() if name in available}
    return {name: factor for name, factor in ramped.items() if factor < 1.0}

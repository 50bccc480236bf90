"""All that the control loop wants done. Each says the whole of what it is about, so that only the last one counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lbctl.ir.weight import Weight

Verdict = Literal["in", "floor", "out"]
Mode = Literal["acting", "frozen", "blind", "held"]
"""acting: evidence moves weights. frozen: more than half look slow, hot or stale, and no weight moves. blind: more than
half are stale or have never told anything, and weights go back to the capacities. held: by an operator."""


@dataclass(frozen=True, slots=True)
class WeightsChanged:
    """Replica → weight, for every replica of the pool."""

    pool: str
    weights: Mapping[str, Weight]


@dataclass(frozen=True, slots=True)
class HealthChanged:
    """out: nothing new goes there. floor: as little as possible. `reasons` in words, the gravest first."""

    pool: str
    replica: str
    verdict: Verdict
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RampsChanged:
    """Replica → factor < 1 on its weight, for proxies that do not ramp by themselves; empty when all are up."""

    pool: str
    factors: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ModeChanged:
    pool: str
    mode: Mode
    words: str


Effect = WeightsChanged | HealthChanged | RampsChanged | ModeChanged

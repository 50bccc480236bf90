"""The effects of the control loop.

`LoopOutput.after` applies them to the configuration of the proxies, and logs record them.

Each effect fully describes its subject, so that only the newest effect of each kind matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lbctl.ir.weight import Weight

Verdict = Literal["in", "floor", "out", "asleep"]
"""in: the replica gets its weight. floor: it gets as few requests as possible. out: it gets no new requests because of
a fault. asleep: it gets no new requests because its engine is asleep, which is not a fault."""
Mode = Literal["acting", "frozen", "blind", "held"]
"""acting: weights change based on evidence. frozen: more than half of the replicas look slow, hot or stale, so no
weight changes. blind: more than half are stale or have never been sampled, so weights return to the capacities. held:
an operator has frozen the weights."""


@dataclass(frozen=True, slots=True)
class WeightsChanged:
    """A pool's weights have changed by more than the deadband. Operators' overrides are applied by `compose`."""

    pool: str
    weights: Mapping[str, Weight]
    """Maps each of the pool's replicas to its weight, within the floor and ceiling, after bounded steps."""
    at_capacity: bool
    """Whether each weight equals the replica's capacity, as it would without the control loop."""


@dataclass(frozen=True, slots=True)
class HealthChanged:
    """The verdict on a replica changed, or the reasons for it did."""

    pool: str
    replica: str
    verdict: Verdict
    """The new verdict."""
    reasons: tuple[str, ...]
    """Human-readable reasons, most severe first."""


@dataclass(frozen=True, slots=True)
class RemapAcceptanceChanged:
    """An operator has accepted a replica's failed row remap, or the accepted failure has been resolved."""

    pool: str
    replica: str
    accepted: bool
    """Whether the deep health check ignores the failure."""


@dataclass(frozen=True, slots=True)
class ModeChanged:
    """The mode of a pool's weights has changed."""

    pool: str
    mode: Mode
    """The new mode."""
    reason: str
    """Human-readable reason, or an empty string in the "acting" mode."""


Effect = WeightsChanged | HealthChanged | RemapAcceptanceChanged | ModeChanged

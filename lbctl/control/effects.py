"""The effects of the control loop:

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
a fault. asleep: it gets no new requests because its engine sleeps, which is not a fault."""
Mode = Literal["acting", "frozen", "blind", "held"]
"""acting: evidence moves weights. frozen: more than half look slow, hot or stale, and no weight moves. blind: more than
half are stale or have never been sampled, and weights return to the capacities. held: an operator has frozen the
weights."""


@dataclass(frozen=True, slots=True)
class WeightsChanged:
    """The weights of a pool have changed by more than the deadband. Operators' overrides are applied by `compose`."""

    pool: str
    weights: Mapping[str, Weight]
    """Maps each replica of the pool to its weight: within floor and ceiling, after bounded steps."""
    at_capacity: bool
    """Whether each weight equals the replica's capacity, as it does without the control loop."""


@dataclass(frozen=True, slots=True)
class HealthChanged:
    """The verdict on a replica, or the reasons for it, have changed."""

    pool: str
    replica: str
    verdict: Verdict
    """The new verdict."""
    reasons: tuple[str, ...]
    """Human-readable reasons, most severe first."""


@dataclass(frozen=True, slots=True)
class RemapAcceptanceChanged:
    """An operator has accepted a replica's failed row remap, or the accepted failure has ended."""

    pool: str
    replica: str
    accepted: bool
    """Whether deep health ignores the failure."""


@dataclass(frozen=True, slots=True)
class ModeChanged:
    """The mode of a pool's weights has changed."""

    pool: str
    mode: Mode
    """The new mode."""
    reason: str
    """Human-readable reason; empty for the mode "acting"."""


Effect = WeightsChanged | HealthChanged | RemapAcceptanceChanged | ModeChanged

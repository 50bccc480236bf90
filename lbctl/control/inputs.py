"""What the control loop observes of a replica: its signals, and the requests that the proxies have there."""

from __future__ import annotations

from lbctl.base.records import dataclass
from lbctl.signals.merge import Signals

NEVER = float("-inf")
"""Before every time. Times are seconds on the clock of the events, which never goes back."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One replica at one time."""

    at: float
    """The time of its newest sample."""
    signals: Signals
    """The signals of the replica."""
    in_flight: int | None = None
    """The requests that the proxies have there; None where they cannot report it."""
    reserves_memory: bool = False
    """Whether the engine reserves GPU memory, so that free GPU memory is no signal."""

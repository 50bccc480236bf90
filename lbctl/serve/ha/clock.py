"""The shared time of all members of a control plane: the leader's time.

The ends of overrides and drains, and the steps of rollouts, depend on time. A member whose clock differs follows the
leader's clock, and keeps that time if it becomes the leader, so that nothing ends early or late when the leader
changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_TOLERANCE = 0.5
"""Clock difference, in seconds, that network delays can explain."""


class FleetClock:
    """Seconds since the epoch on the leader's clock. `wall`: the clock of this machine."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self.offset = 0.0
        """Number of seconds by which the leader's clock is ahead of this machine's clock."""

    def now(self) -> float:
        """Return the time."""
        return self._wall() + self.offset

    def adjust(self, leader: float) -> None:
        """Adjust to the leader's time, which was sent a moment ago."""
        offset = leader - self._wall()
        if abs(offset - self.offset) > _TOLERANCE:
            self.offset = offset if abs(offset) > _TOLERANCE else 0.0

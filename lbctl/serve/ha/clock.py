"""The time shared by all members of a control plane, which is the leader's time.

It determines when overrides and drains end, and when rollouts advance. A member whose clock differs adjusts to the
leader's clock, and keeps that time if it becomes the leader itself, so that nothing ends early or late when the leader
changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_TOLERANCE = 0.5
"""Clock difference, in seconds, that may be caused by network delays."""


class FleetClock:
    """Seconds since the epoch according to the leader's clock. `wall`: this machine's clock."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self.offset = 0.0
        """Number of seconds by which the leader's clock is ahead of this machine's clock."""

    def now(self) -> float:
        """Return the current time."""
        return self._wall() + self.offset

    def adjust(self, leader: float) -> None:
        """Adjust to the leader's time, which was sent a moment ago."""
        offset = leader - self._wall()
        if abs(offset - self.offset) > _TOLERANCE:
            self.offset = offset if abs(offset) > _TOLERANCE else 0.0

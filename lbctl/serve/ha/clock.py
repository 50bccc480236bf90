"""The time that all members of a control plane share: the leader's.

The ends of overrides and drains, and the steps of rollouts, are times. A member whose clock differs follows the
leader's, and keeps to it when it leads itself, so that nothing ends early or late because another member leads.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_TOLERANCE = 0.5
"""Seconds of difference that delays of the network explain."""


class FleetClock:
    """Seconds since the epoch by the leader's clock. `wall`: the clock of this machine."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self.offset = 0.0
        """Seconds that the leader's clock is ahead of this machine's."""

    def now(self) -> float:
        """Return the time."""
        return self._wall() + self.offset

    def adjust(self, leader: float) -> None:
        """Take the leader's time, which was sent a moment ago."""
        offset = leader - self._wall()
        if abs(offset - self.offset) > _TOLERANCE:
            self.offset = offset if abs(offset) > _TOLERANCE else 0.0

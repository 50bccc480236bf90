"""A clock for deadlines that does not jump when the machine's clock is changed.

The times at which overrides and drains end and rollouts advance are saved as seconds since the epoch, so that they
survive a restart. While the process is running, they must not be reached early, even if the machine's clock is changed.
After a restart, the machine's clock is used again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from lbctl.runtime import log

_TOLERANCE = 2.0
"""Changes to the machine's clock of up to this many seconds are followed immediately.

An NTP client slews a clock by less than a thousandth of the time between two calls.
"""


def _since_boot() -> float:
    """Return the number of seconds since the machine booted, including time during which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SteadyClock:
    """Seconds since the epoch, based on elapsed time.

    `wall` is the machine's clock; `elapsed` is a clock that cannot be set.
    """

    def __init__(self, wall: Callable[[], float] = time.time, elapsed: Callable[[], float] = _since_boot) -> None:
        self._wall = wall
        self._elapsed = elapsed
        self._offset = wall() - elapsed()
        self._reported = 0.0

    def now(self) -> float:
        """Return the time. A jump in the machine's clock is logged once and is not followed."""
        elapsed = self._elapsed()
        jump = self._wall() - elapsed - self._offset
        if abs(jump) <= _TOLERANCE:
            self._offset += jump
            self._reported = 0.0
        elif abs(jump - self._reported) > _TOLERANCE:
            self._reported = jump
            log.warn(
                "this machine's clock was changed; until the next restart, timeouts are based on elapsed time",
                seconds=round(jump),
            )
        return elapsed + self._offset

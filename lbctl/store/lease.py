"""Whether this process may decide and act now, by its own monotonic clock.

A leader that cannot renew its lease stops acting before another process can get it, whatever the store or the clock of
the machine says. Where the store does not answer, the last leader goes on deciding weights and health for its own
proxies: they are derived from what it measures, and need nothing of the store.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable


def elapsed() -> float:
    """Return seconds that also pass while the machine sleeps, where it has such a clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class Authority:
    """The right to decide and to act. `clock`: seconds that also pass while the process is stopped."""

    def __init__(self, clock: Callable[[], float] = elapsed) -> None:
        self.clock = clock
        self.until = -math.inf
        """The time of the clock at which the right to act ends."""
        self.isolated = False
        """Whether this was the last leader, and the store does not answer."""

    @classmethod
    def unlimited(cls) -> Authority:
        """Return the right of a process that has no others beside it."""
        authority = cls()
        authority.extend(math.inf)
        return authority

    def extend(self, until: float) -> None:
        """Have the right to act until this time of the clock."""
        self.until = until

    def end(self) -> None:
        """Have no right to act any more."""
        self.until = -math.inf

    def set_isolated(self, isolated: bool) -> None:
        """Note whether this was the last leader, and the store does not answer."""
        self.isolated = isolated

    @property
    def acts(self) -> bool:
        """Whether proxies of this machine and the store may be changed."""
        return self.clock() < self.until

    @property
    def decides(self) -> bool:
        """Whether weights and health may be decided."""
        return self.isolated or self.acts

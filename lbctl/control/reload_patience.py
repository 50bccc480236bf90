"""How long a reload waits for weights that come from evidence, at a proxy that takes weights only by a reload.

A reload has a price: the new workers know nothing of the requests that the old ones finish, so least connections begins
anew, and a replica that is slow just then gets its whole share on top of what it has. In simulation a reload for each
step of a weight made the 99th percentile up to 2.6 times that of static weights where a replica's speed came and went.
So a change must have lasted as long as the interval between two reloads, and a small one longer; what is loaded then is
where the weight has arrived, not a step on its way. A replica that health brings to the floor is not waited for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from lbctl.ir.weight import Weight

_LARGE = 0.4
"""The relative change of a rate that is worth a reload of its own."""
_FLOORED = 0.5
"""A replica whose share falls below this part for another reason than its speed or its capacity is in bad health."""
_SMALL_CHANGES = 4
"""The intervals that a smaller change waits."""


@dataclass(frozen=True, slots=True)
class ReloadPatience:
    """Since when the wanted weights have differed from the running ones. Times are seconds of any one clock."""

    since: float | None = None
    """None while they do not differ."""
    large_since: float | None = None
    """Since when they have differed so much that the change is worth a reload of its own; None while they do not."""

    def observe(self, weights: Iterable[tuple[Weight, Weight]], now: float) -> ReloadPatience:
        """Take the running and the wanted weight of each replica."""
        pairs = list(weights)
        change = max((abs(wanted.rate / running.rate - 1.0) for running, wanted in pairs), default=0.0)
        if not change:
            return ReloadPatience()
        if any(wanted.held < _FLOORED * running.held for running, wanted in pairs):
            return ReloadPatience(-math.inf, -math.inf)
        large_since = (now if self.large_since is None else self.large_since) if change >= _LARGE else None
        return ReloadPatience(now if self.since is None else self.since, large_since)

    def due(self, interval: float) -> float | None:
        """Return when the change has lasted long enough, with so many seconds between two reloads."""
        if self.since is None:
            return None
        due = self.since + interval * _SMALL_CHANGES
        return due if self.large_since is None else min(due, self.large_since + interval)

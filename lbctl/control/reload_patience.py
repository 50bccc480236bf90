"""Delays reloads for measured weights, in proxies that can change weights only by a reload.

A reload has a cost: the new workers do not know about the requests that the old ones finish. So least connections
starts again from zero, and a replica that is currently slow gets its whole share in addition to its existing requests.
In a simulation with a replica of changing speed, a reload for each step of a weight raised the 99th percentile to up to
2.6 times the value with static weights. So a change must last as long as the interval between two reloads, and a small
change must last longer. The reload then uses the final weight, not a step on the way. If health lowers a replica to the
floor weight, there is no delay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from lbctl.ir.weight import Weight

_LARGE = 0.4
"""The relative change of a rate that justifies a separate reload."""
_FLOORED = 0.5
"""A replica whose share falls below this fraction for a reason other than its speed or capacity is in bad health."""
_SMALL_CHANGES = 4
"""Number of intervals that a smaller change waits."""


@dataclass(frozen=True, slots=True)
class ReloadPatience:
    """The time since which the wanted weights have differed from the running ones.

    Times are seconds of any one clock.
    """

    since: float | None = None
    """The time since which they differ; None if they do not differ."""
    large_since: float | None = None
    """Time since which the difference justifies a separate reload; None if it does not."""

    def observe(self, weights: Iterable[tuple[Weight, Weight]], now: float) -> ReloadPatience:
        """Record the running and the wanted weight of each replica."""
        pairs = list(weights)
        change = max((abs(wanted.rate / running.rate - 1.0) for running, wanted in pairs), default=0.0)
        if not change:
            return ReloadPatience()
        if any(wanted.held < _FLOORED * running.held for running, wanted in pairs):
            return ReloadPatience(-math.inf, -math.inf)
        large_since = (now if self.large_since is None else self.large_since) if change >= _LARGE else None
        return ReloadPatience(now if self.since is None else self.since, large_since)

    def due(self, interval: float) -> float | None:
        """Return when the change has lasted long enough. `interval`: seconds between two reloads."""
        if self.since is None:
            return None
        due = self.since + interval * _SMALL_CHANGES
        return due if self.large_since is None else min(due, self.large_since + interval)

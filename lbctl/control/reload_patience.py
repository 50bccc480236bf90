"""Delays reloads for measured weights, in proxies that can only change weights by reloading.

A reload has a cost, because the new workers do not count the requests that the old ones are still finishing. As a
result, least connections starts again from zero, and a replica that is currently slow gets its full share on top of its
existing requests. In a simulation with a replica whose speed varied, reloading for each step of a weight raised the
99th percentile to as much as 2.6 times its value with static weights. Therefore, a change must last as long as the
interval between two reloads, and smaller changes must last longer. The reload then uses the final weight, not an
intermediate one, and the small corrections that follow cause no further reloads. Reloads are not delayed if a replica's
weight is lowered to the floor because of its health.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from lbctl.ir.weight import Weight

_WAITS = ((0.4, 1), (0.2, 4), (0.0, 16))
"""(minimum relative change in a rate, number of reload intervals for which it must last)"""
_FLOORED = 0.5
"""A replica whose share falls below this fraction for reasons other than its speed or capacity counts as unhealthy."""


@dataclass(frozen=True, slots=True)
class ReloadPatience:
    """The time since which the desired weights have differed from the running weights.

    Times are in seconds, on any single clock.
    """

    since: tuple[float | None, ...] = (None,) * len(_WAITS)
    """For each row of `_WAITS`, the time since which the change has been this large, or None if it is not."""
    is_floored: bool = False
    """Whether health has lowered a replica to the floor, and this weight has not been loaded yet."""

    def observe(self, weights: Iterable[tuple[Weight, Weight]], now: float) -> ReloadPatience:
        """Record each replica's running and desired weights."""
        pairs = list(weights)
        change = max((abs(wanted.rate / running.rate - 1.0) for running, wanted in pairs), default=0.0)
        if not change:
            return ReloadPatience()
        since = tuple(
            (now if since is None else since) if change >= minimum else None
            for (minimum, _), since in zip(_WAITS, self.since, strict=True)
        )
        return ReloadPatience(since, any(wanted.held < _FLOORED * running.held for running, wanted in pairs))

    def due(self, interval: float) -> float | None:
        """Return the time at which the change will have lasted long enough.

        `interval` is the time between two reloads, in seconds.
        """
        if self.is_floored:
            return -math.inf
        waits = zip(_WAITS, self.since, strict=True)
        return min((since + interval * count for (_, count), since in waits if since is not None), default=None)

"""Delays reloads for measured weights, in proxies that can change weights only by a reload.

A reload has a cost: the new workers do not know about the requests that the old ones finish. So least connections
starts again from zero, and a replica that is currently slow gets its whole share in addition to its existing requests.
In a simulation with a replica of changing speed, a reload for each step of a weight raised the 99th percentile to up to
2.6 times the value with static weights. So a change must last as long as the interval between two reloads, and the
smaller it is, the longer it must last. The reload then uses the final weight, not a step on the way, and the small
corrections after it cause no further reloads. A reload is not delayed if health lowers a replica to the floor weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from lbctl.ir.weight import Weight

_WAITS = ((0.4, 1), (0.2, 4), (0.0, 16))
"""(minimum relative change of a rate, number of intervals between two reloads for which it must last)."""
_FLOORED = 0.5
"""A replica whose share falls below this fraction for a reason other than its speed or capacity is in bad health."""


@dataclass(frozen=True, slots=True)
class ReloadPatience:
    """The time since which the wanted weights have differed from the running ones.

    Times are seconds of any one clock.
    """

    since: tuple[float | None, ...] = (None,) * len(_WAITS)
    """For each row of `_WAITS`, the time since which the change has been this large; None if it is not."""

    def observe(self, weights: Iterable[tuple[Weight, Weight]], now: float) -> ReloadPatience:
        """Record the running and the wanted weight of each replica."""
        pairs = list(weights)
        change = max((abs(wanted.rate / running.rate - 1.0) for running, wanted in pairs), default=0.0)
        if not change:
            return ReloadPatience()
        if any(wanted.held < _FLOORED * running.held for running, wanted in pairs):
            return ReloadPatience((-math.inf,) * len(_WAITS))
        return ReloadPatience(
            tuple(
                (now if since is None else since) if change >= minimum else None
                for (minimum, _), since in zip(_WAITS, self.since, strict=True)
            )
        )

    def due(self, interval: float) -> float | None:
        """Return when the change has lasted long enough. `interval`: seconds between two reloads."""
        waits = zip(_WAITS, self.since, strict=True)
        return min((since + interval * count for (_, count), since in waits if since is not None), default=None)

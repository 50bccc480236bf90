"""What a replica is given. Proxies differ in what a weight does, so one number cannot say it.

A replica that works at half its speed should answer half as many requests as its peers, and each takes it twice as
long: it has as many in flight as before. One whose capacity was written twice too large should answer half as many,
and have half as many in flight. `targets.weighing` makes each proxy's own numbers of these.
"""

from __future__ import annotations

from typing import NamedTuple


class Weight(NamedTuple):
    """On the scale of capacity, both > 0: the requests that it should answer (`rate`), and those that it carries at
    once (`room`). `speed`: measured, against replicas with the same GPU. What is left of the rate is `held`."""

    rate: float
    room: float
    speed: float = 1.0

    @property
    def held(self) -> float:
        """The factor that has to do with neither speed nor room: a floor, a trial, a step on the way, a ramp."""
        return self.rate / (self.room * self.speed)

    def times(self, factor: float) -> Weight:
        """Held by that factor more."""
        return Weight(self.rate * factor, self.room, self.speed)


def plain(capacity: float) -> Weight:
    """What a capacity asks for, by the files or by hand: nothing is known of its speed."""
    return Weight(capacity, capacity)

"""A replica's weight, as several numbers: proxies differ in what a weight does, so one number cannot express it.

A replica that works at half its speed should answer half as many requests as its peers, and each takes twice as long:
it has as many in flight as before. One whose configured capacity is twice too large should answer half as many, and
have half as many in flight. `targets.effective_weights` derives each proxy's own numbers from these.
"""

from __future__ import annotations

from typing import NamedTuple


class Weight(NamedTuple):
    """A replica's weight on the scale of capacity; `rate` and `room` are > 0."""

    rate: float
    """The requests that it should answer, relative to its peers."""
    room: float
    """The requests that it should carry at once, relative to its peers."""
    speed: float = 1.0
    """The measured speed, relative to replicas with the same GPU."""

    @property
    def held(self) -> float:
        """The factor of the rate that is neither speed nor room: a floor, a trial, a limited step, a ramp."""
        return self.rate / (self.room * self.speed)

    def times(self, factor: float) -> Weight:
        """Return the weight with its rate multiplied by the factor."""
        return Weight(self.rate * factor, self.room, self.speed)


def from_capacity(capacity: float) -> Weight:
    """The weight of a capacity from the files or an operator, without a measured speed."""
    return Weight(capacity, capacity)

"""Represents a replica's weight as several numbers, because the meaning of a weight differs between proxies.

A replica that runs at half its speed should handle half as many requests as its peers, and each request takes twice as
long, so it has as many requests in flight as before. A replica whose configured capacity is twice its real capacity
should handle half as many requests, and have half as many in flight. `targets.effective_weights` derives each proxy's
own numbers from these.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple


class Weight(NamedTuple):
    """A replica's weight, on the same scale as capacities. `rate` and `room` are greater than 0."""

    rate: float
    """Rate at which the replica should handle requests, relative to its peers."""
    room: float
    """Number of requests that the replica should have in flight, relative to its peers."""
    speed: float = 1.0
    """Measured speed, relative to replicas with the same GPU."""

    @property
    def held(self) -> float:
        """Return the factor of the rate that is due to neither speed nor room.

        Possible causes are a floor, a trial, a limited step, or a ramp.
        """
        return self.rate / (self.room * self.speed)

    def times(self, factor: float) -> Weight:
        """Return the weight with its rate multiplied by the factor."""
        return Weight(self.rate * factor, self.room, self.speed)


@lru_cache(typed=True)  # replicas in a fleet have few different capacities
def from_capacity(capacity: float) -> Weight:
    """Return the weight for a capacity set in the files or by an operator, without a measured speed."""
    return Weight(capacity, capacity)

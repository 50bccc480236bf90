"""A queue of actions by time: changes in a simulation in addition to requests and iterations."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

Action = Callable[[float], None]


class ActionQueue:
    """Actions that are due at a time, in seconds; those of one time in the order in which they were added."""

    def __init__(self) -> None:
        self._queue: list[tuple[float, int, Action]] = []
        self._number = 0

    def at(self, time: float, action: Action) -> None:
        """Do something at a time; never where that is infinite."""
        if time != math.inf:
            self._number += 1
            heapq.heappush(self._queue, (time, self._number, action))

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to happen any more."""
        return not self._queue

    def next_time(self) -> float:
        """Return when the next action is due; infinite: never."""
        return self._queue[0][0] if self._queue else math.inf

    def run(self, now: float) -> None:
        """Do what is due."""
        while self._queue and self._queue[0][0] <= now:
            time, _, action = heapq.heappop(self._queue)
            action(time)

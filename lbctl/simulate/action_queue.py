"""A queue of timed actions: changes in a simulation other than requests and iterations."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

Action = Callable[[float], None]


class ActionQueue:
    """Actions with a due time, in seconds. Actions due at the same time run in the order in which they were added."""

    def __init__(self) -> None:
        self._queue: list[tuple[float, int, Action]] = []
        self._number = 0

    def at(self, time: float, action: Action) -> None:
        """Schedule an action. If the time is infinite, the action is never run."""
        if time != math.inf:
            self._number += 1
            heapq.heappush(self._queue, (time, self._number, action))

    @property
    def is_empty(self) -> bool:
        """Whether no more actions are scheduled."""
        return not self._queue

    def next_time(self) -> float:
        """Return the time of the next action; infinite if there is none."""
        return self._queue[0][0] if self._queue else math.inf

    def run(self, now: float) -> None:
        """Run the actions that are due."""
        while self._queue and self._queue[0][0] <= now:
            time, _, action = heapq.heappop(self._queue)
            action(time)

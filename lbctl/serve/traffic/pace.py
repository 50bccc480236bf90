"""Decides how often the proxies are polled: more often for a while after a replica has become reachable or unreachable.

The proxies' own checks notice the change within a few seconds, and the views should then show it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

HASTE = 1.0
"""Seconds between polls after such a change."""
_HASTE_TIME = 30.0
"""The pauses between polls."""


class Pace:
    """The pauses between two polls. `clock` returns seconds on a monotonic clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._hasty_until = 0.0
        self._hastened = asyncio.Event()

    def hasten(self) -> None:
        """Shorten the pauses for a while, including pauses that have already begun."""
        self._hasty_until = self._clock() + _HASTE_TIME
        self._hastened.set()
        self._hastened = asyncio.Event()

    async def pause(self, seconds: float) -> None:
        """Wait for `seconds`, or less after a change."""
        began = self._clock()
        while (left := began + self._length(seconds) - self._clock()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._hastened.wait()
            except TimeoutError:
                return

    def _length(self, seconds: float) -> float:
        return min(seconds, HASTE) if self._clock() < self._hasty_until else seconds

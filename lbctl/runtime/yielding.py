"""Long computations of the event loop in short turns, so that what goes to the proxies waits for none of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

_TURN, _PAUSE = 0.001, 0.004
"""Seconds of work in one turn of the event loop, at most but for its last step, and of the pause after it. A push to a
proxy takes several turns, each of which could wait for a part of the work if there were no pause."""


async def in_turns(steps: Generator[object, None, T]) -> tuple[T, float]:
    """Run the generator to its end; what it yields is ignored.

    Returns what it returns, and the seconds that it has worked, without the pauses.
    """
    worked = 0.0
    while True:
        started = time.perf_counter()
        try:
            while time.perf_counter() - started < _TURN:
                next(steps)
        except StopIteration as end:
            return end.value, worked + time.perf_counter() - started
        worked += time.perf_counter() - started
        await asyncio.sleep(_PAUSE)

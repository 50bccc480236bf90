"""Splits long computations on the event loop into short turns, so that updates to proxies are not delayed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

_TURN, _PAUSE = 0.001, 0.004
"""Maximum time in seconds spent working in one turn of the event loop, excluding the turn's last step, and the pause
after it in seconds.

A push to a proxy takes several turns. Without the pause, each of them might have to wait for part of the work.
"""


async def in_turns(steps: Generator[object, None, T]) -> tuple[T, float]:
    """Run the generator to completion; yielded values are ignored.

    Return the generator's return value and the seconds of work, excluding pauses.
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

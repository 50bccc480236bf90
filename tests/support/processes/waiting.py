"""Waits for eventual results, for example an ejection by a check, or the end of an ejection."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool], timeout: float = 60.0, pause: float = 0.05) -> None:
    """Wait until the condition holds, checked every `pause` seconds. Fails if it does not within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not true within {timeout} s"
        time.sleep(pause)


def at_rest(count: Callable[[], int], quiet: float = 0.5) -> int:
    """Return the count when it has not changed for `quiet` seconds, so that everything in transit has arrived."""
    before, since = count(), time.monotonic()

    def still() -> bool:
        nonlocal before, since
        if (now := count()) != before:
            before, since = now, time.monotonic()
        return time.monotonic() - since >= quiet

    eventually(still)
    return before

"""Long computations let other tasks run between short turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator

from lbctl.runtime.yielding import in_turns


def _busy(steps: int) -> Generator[None, None, str]:
    for _ in range(steps):
        end = time.perf_counter() + 0.0005
        while time.perf_counter() < end:
            pass
        yield
    return "done"


def test_other_tasks_run_between_the_turns() -> None:
    async def script() -> tuple[str, float, int]:
        turns_of_others = 0

        async def other() -> None:
            nonlocal turns_of_others
            while True:
                await asyncio.sleep(0)
                turns_of_others += 1

        task = asyncio.create_task(other())
        result, worked = await in_turns(_busy(20))
        task.cancel()
        return result, worked, turns_of_others

    result, worked, turns_of_others = asyncio.run(script())
    assert result == "done"
    assert worked >= 20 * 0.0005
    assert turns_of_others >= 5

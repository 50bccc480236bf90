"""Proxies are polled more often for a while after a replica has become reachable or unreachable."""

from __future__ import annotations

import asyncio

import pytest

from lbctl.serve.traffic import pace
from lbctl.serve.traffic.pace import Pace


class Clock:
    """A clock that only pauses advance."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(pace.asyncio, "timeout", self._wait)

    def _wait(self, seconds: float) -> asyncio.Timeout:
        self.now += seconds
        return asyncio.timeout_at(0)

    async def took(self, paced: Pace, seconds: float) -> float:
        """Return how long a pause took."""
        began = self.now
        await paced.pause(seconds)
        return round(self.now - began, 3)


def test_pauses_are_short_for_a_while_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    paced = Pace(lambda: clock.now)

    async def pauses() -> list[float]:
        took = [await clock.took(paced, 5.0)]
        paced.hasten()
        took += [await clock.took(paced, 5.0), await clock.took(paced, 0.5)]
        clock.now += 30.0
        return [*took, await clock.took(paced, 5.0)]

    assert asyncio.run(pauses()) == [5.0, 1.0, 0.5, 5.0]


@pytest.mark.slow
def test_change_shortens_a_pause_that_has_begun() -> None:
    async def ends() -> bool:
        paced = Pace()
        task = asyncio.create_task(paced.pause(60.0))
        await asyncio.sleep(0)
        paced.hasten()
        async with asyncio.timeout(30.0):
            await task
        return True

    assert asyncio.run(ends())

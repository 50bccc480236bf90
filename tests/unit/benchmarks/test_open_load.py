"""What the measurements with real proxies stand on: engines at the pace of the clock, and requests that do not wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from lbctl.simulate.engine import CostModel
from tests.benchmarks import open_load
from tests.benchmarks.open_load import Due, Load, Told, poisson
from tests.benchmarks.paced import Paced
from tests.support.signals import reading

_STEP = 0.01
_CURVE = CostModel(_STEP, 0.0, 0.0, 0.0, 2)
"""Two at a time."""


async def _answered(engine: Paced, requests: Sequence[Due], wait: float) -> Told:
    await engine.start()
    load = Load([engine.port], "/x")
    began = time.monotonic()
    await load.run(requests, began)
    await asyncio.sleep(wait)
    told = load.told(began, began + 10)
    await load.close()
    await engine.stop()
    return told


def test_an_answer_begins_with_its_first_token_and_ends_with_its_last() -> None:
    told = asyncio.run(_answered(Paced("a", 1.0, _CURVE), [Due(0.0, 1, 10)], 0.3))
    assert (told.failed, told.shares()) == (0, {"a": 1.0})
    assert _STEP <= told.first_token(99) < 10 * _STEP <= told.whole(99)


def test_who_finds_no_slot_waits_and_nobody_waits_for_an_answer_to_send() -> None:
    told = asyncio.run(_answered(Paced("a", 1.0, _CURVE), [Due(0.0, 1, 10)] * 4, 0.5))
    firsts = sorted((item.first or 0.0) - item.at for item in told.sent)
    assert firsts[1] < 10 * _STEP <= firsts[2]
    assert max(item.at for item in told.sent) - min(item.at for item in told.sent) < 5 * _STEP


def test_a_throttled_engine_takes_twice_as_long_and_says_so() -> None:
    engine = Paced("a", 1.0, _CURVE)
    engine.throttle(0.5)
    told = asyncio.run(_answered(engine, [Due(0.0, 1, 10)], 0.4))
    assert told.whole(99) >= 20 * _STEP
    quantities = reading("vllm", engine.page()).quantities
    assert quantities["itl_seconds"] / quantities["itl_count"] == pytest.approx(2 * _STEP)


def test_an_answer_that_has_not_come_counts_with_the_time_that_it_was_waited_for() -> None:
    told = asyncio.run(_answered(Paced("a", 0.01, _CURVE), [Due(0.0, 1, 10)], 0.2))
    assert told.first_token(99) >= 0.2


def test_the_same_seed_gives_the_same_arrivals() -> None:
    first, second = (poisson(50.0, 20.0, 100.0, 30.0, 0.7, "seed") for _ in range(2))
    assert first == second
    assert len(first) == pytest.approx(1000, rel=0.15)
    assert sum(item.answer for item in first) / len(first) == pytest.approx(30.0, rel=0.15)


def test_a_client_that_has_waited_long_enough_leaves_and_its_request_gets_no_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_load, "PATIENCE", 0.1)
    engine = Paced("a", 1.0, _CURVE)
    told = asyncio.run(_answered(engine, [Due(0.0, 1, 30)] * 4, 0.6))
    assert (told.failed, told.first_token(99)) == (2, 0.1)
    assert b'generation_tokens_total{model_name="m"} 60.0\n' in engine.page()

"""Simulated replicas keep the pace of the clock and fail as real ones do; requests are sent when they are due."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence

import pytest

from lbctl.demo.load import Arrival, LoadGenerator, Outcomes, poisson
from lbctl.demo.replica import HOST, PacedReplica
from lbctl.simulate.engine import CostModel
from lbctl.simulate.lengths import lognormal
from tests.support.signals import reading

_STEP = 0.01
_CURVE = CostModel(_STEP, 0.0, 0.0, 0.0, 2)
"""Two at a time."""


async def _answered(engine: PacedReplica, requests: Sequence[Arrival], wait: float, patience: float = 60.0) -> Outcomes:
    await engine.start()
    load = LoadGenerator([engine.port], "/x", patience)
    began = time.monotonic()
    await load.run(requests, began)
    await asyncio.sleep(wait)
    told = load.outcomes(began, began + 10)
    await load.close()
    await engine.close()
    return told


def test_an_answer_begins_with_its_first_token_and_ends_with_its_last() -> None:
    told = asyncio.run(_answered(PacedReplica("a", 1.0, _CURVE), [Arrival(0.0, 1, 100)], 1.4))
    assert (told.failed, told.shares()) == (0, {"a": 1.0})
    assert _STEP <= told.first_token(99) <= told.whole(99) - 50 * _STEP
    assert told.whole(99) >= 100 * _STEP


def test_who_finds_no_slot_waits_and_nobody_waits_for_an_answer_to_send() -> None:
    told = asyncio.run(_answered(PacedReplica("a", 1.0, _CURVE), [Arrival(0.0, 1, 10)] * 4, 0.5))
    firsts = sorted((item.first or 0.0) - item.at for item in told.sent)
    assert firsts[1] < 10 * _STEP <= firsts[2]
    assert max(item.at for item in told.sent) - min(item.at for item in told.sent) < 5 * _STEP


def test_a_throttled_engine_takes_twice_as_long_and_says_so() -> None:
    engine = PacedReplica("a", 1.0, _CURVE)
    engine.throttle(0.5)
    told = asyncio.run(_answered(engine, [Arrival(0.0, 1, 10)], 0.4))
    assert told.whole(99) >= 20 * _STEP
    quantities = reading("vllm", engine.page()).quantities
    assert quantities["itl_seconds"] / quantities["itl_count"] == pytest.approx(2 * _STEP)


def test_an_answer_that_has_not_come_counts_with_the_time_that_it_was_waited_for() -> None:
    told = asyncio.run(_answered(PacedReplica("a", 0.01, _CURVE), [Arrival(0.0, 1, 10)], 0.2))
    assert told.first_token(99) >= 0.2


def test_the_same_seed_gives_the_same_arrivals() -> None:
    first, second = (poisson(50.0, 20.0, lognormal(100.0, 30.0, 0.7), "seed") for _ in range(2))
    assert first == second
    assert len(first) == pytest.approx(1000, rel=0.15)
    assert sum(item.answer for item in first) / len(first) == pytest.approx(30.0, rel=0.15)


def test_a_client_that_has_waited_long_enough_leaves_and_its_request_gets_no_slot() -> None:
    engine = PacedReplica("a", 1.0, _CURVE)
    told = asyncio.run(_answered(engine, [Arrival(0.0, 1, 30)] * 4, 0.6, patience=0.1))
    assert (told.failed, told.first_token(99)) == (2, 0.1)
    assert b'generation_tokens_total{model_name="m"} 60.0\n' in engine.page()


async def _with_fault(engine: PacedReplica, begin: Callable[[], object], end: Callable[[], object]) -> list[bool]:
    """Whether a request has its last token: during the fault, and after it."""
    await engine.start()
    begin()
    load = LoadGenerator([engine.port], "/x")
    began = time.monotonic()
    await load.run([Arrival(0.0, 1, 2)], began)
    await asyncio.sleep(0.3)
    during = load.sent[0].last is not None
    end()
    await asyncio.sleep(0.3)
    after = load.sent[0].last is not None
    await load.close()
    await engine.close()
    return [during, after]


def test_a_wedged_engine_ends_nothing_behind_a_healthy_port_and_goes_on_where_it_was() -> None:
    engine = PacedReplica("a", 1.0, _CURVE)
    assert asyncio.run(_with_fault(engine, lambda: engine.wedge(True), lambda: engine.wedge(False))) == [False, True]
    assert engine.running == 0


def test_a_replica_that_died_comes_back_on_its_port() -> None:
    async def life() -> list[bool]:
        engine = PacedReplica("a", 1.0, _CURVE)
        await engine.start()
        port = engine.port
        await engine.stop()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((HOST, port))
        refused = LoadGenerator([port], "/x")
        await refused.run([Arrival(0.0, 1, 2)], time.monotonic())
        await asyncio.sleep(0.1)
        await engine.start()
        answered = LoadGenerator([port], "/x", keep=False)
        await answered.run([Arrival(0.0, 1, 2)] * 2, time.monotonic())
        await asyncio.sleep(0.3)
        await engine.close()
        return [refused.sent[0].failed, engine.port == port, *(item.last is not None for item in answered.sent)]

    assert asyncio.run(life()) == [True, True, True, True]


def test_its_page_has_the_histogram_of_the_first_token() -> None:
    engine = PacedReplica("a", 1.0, _CURVE)
    asyncio.run(_answered(engine, [Arrival(0.0, 1, 10)], 0.3))
    page = engine.page().decode()
    assert 'vllm:time_to_first_token_seconds_count{model_name="m"} 1\n' in page
    assert 'vllm:time_to_first_token_seconds_bucket{model_name="m",le="+Inf"} 1\n' in page
    assert 'vllm:request_success_total{model_name="m",finished_reason="length"} 1\n' in page

"""Simulated replicas answer in real time and can fail. The load generator sends each request on time."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence

import pytest

from lbctl.demo.load import Arrival, LoadGenerator, Outcomes, poisson
from lbctl.demo.replica import HOST, PacedReplica
from lbctl.simulate.engine import CostModel
from lbctl.simulate.load import lognormal
from tests.support.signals import reading

_STEP = 0.01
_CURVE = CostModel(_STEP, 0.0, 0.0, 0.0, 2)
"""An engine with two slots."""


async def outcomes_of(
    engine: PacedReplica, requests: Sequence[Arrival], wait: float, patience: float = 60.0
) -> Outcomes:
    await engine.start()
    load = LoadGenerator([engine.port], "/x", patience)
    began = time.monotonic()
    await load.run(requests, began)
    await asyncio.sleep(wait)
    outcomes = load.outcomes(began, began + 10)
    await load.close()
    await engine.close()
    return outcomes


@pytest.mark.slow
def test_answer_takes_the_time_of_its_tokens() -> None:
    outcomes = asyncio.run(outcomes_of(PacedReplica("a", 1.0, _CURVE), [Arrival(0.0, 1, 100)], 1.4))
    assert (outcomes.failed, outcomes.shares()) == (0, {"a": 1.0})
    assert _STEP <= outcomes.first_token(99) <= outcomes.whole(99) - 50 * _STEP
    assert outcomes.whole(99) >= 100 * _STEP


def test_requests_are_sent_on_time_and_wait_for_a_slot() -> None:
    outcomes = asyncio.run(outcomes_of(PacedReplica("a", 1.0, _CURVE), [Arrival(0.0, 1, 10)] * 4, 0.5))
    firsts = sorted((item.first or 0.0) - item.at for item in outcomes.sent)
    assert firsts[1] < 10 * _STEP <= firsts[2]
    assert max(item.at for item in outcomes.sent) - min(item.at for item in outcomes.sent) < 5 * _STEP


def test_throttled_engine_takes_twice_as_long() -> None:
    engine = PacedReplica("a", 1.0, _CURVE)
    engine.throttle(0.5)
    outcomes = asyncio.run(outcomes_of(engine, [Arrival(0.0, 1, 10)], 0.4))
    assert outcomes.whole(99) >= 20 * _STEP
    quantities = reading("vllm", engine.page()).quantities
    assert quantities["itl_seconds"] / quantities["itl_count"] == pytest.approx(2 * _STEP)


def test_missing_answer_counts_with_its_waiting_time() -> None:
    outcomes = asyncio.run(outcomes_of(PacedReplica("a", 0.01, _CURVE), [Arrival(0.0, 1, 10)], 0.2))
    assert outcomes.first_token(99) >= 0.2


def test_same_seed_gives_the_same_arrivals() -> None:
    first, second = (poisson(50.0, 20.0, lognormal(100.0, 30.0, 0.7), "seed") for _ in range(2))
    assert first == second
    assert len(first) == pytest.approx(1000, rel=0.15)
    assert sum(item.answer for item in first) / len(first) == pytest.approx(30.0, rel=0.15)


@pytest.mark.slow
def test_request_of_an_impatient_client_gets_no_slot() -> None:
    engine = PacedReplica("a", 1.0, _CURVE)
    outcomes = asyncio.run(outcomes_of(engine, [Arrival(0.0, 1, 150)] * 4, 2.5, patience=1.0))
    assert (outcomes.failed, outcomes.first_token(99)) == (2, 1.0)
    assert b'generation_tokens_total{model_name="m"} 300.0\n' in engine.page()


async def completed_during_and_after(
    engine: PacedReplica, begin: Callable[[], object], end: Callable[[], object]
) -> list[bool]:
    """Return whether a request has its last token during the fault, and after it."""
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


@pytest.mark.slow
def test_wedged_engine_continues_after_its_recovery() -> None:
    engine = PacedReplica("a", 1.0, _CURVE)
    completed = asyncio.run(completed_during_and_after(engine, lambda: engine.wedge(True), lambda: engine.wedge(False)))
    assert completed == [False, True]
    assert engine.running == 0


def test_stopped_replica_restarts_on_its_port() -> None:
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


def test_metrics_page_has_the_histogram_of_the_first_token() -> None:
    engine = PacedReplica("a", 1.0, _CURVE)
    asyncio.run(outcomes_of(engine, [Arrival(0.0, 1, 10)], 0.3))
    page = engine.page().decode()
    assert 'vllm:time_to_first_token_seconds_count{model_name="m"} 1\n' in page
    assert 'vllm:time_to_first_token_seconds_bucket{model_name="m",le="+Inf"} 1\n' in page
    assert 'vllm:request_success_total{model_name="m",finished_reason="length"} 1\n' in page

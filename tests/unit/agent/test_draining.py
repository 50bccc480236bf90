"""When a drain is complete."""

from __future__ import annotations

import pytest

from lbctl.agent.draining import DEFAULT_INTERVAL, DEFAULT_THRESHOLD, MAX_CLIENTS, MAX_SILENCE, MIN_SILENCE, Drain
from lbctl.agent.readings import EngineReading
from tests.support.agent import BUSY, IDLE, down, engine

MIN_ANSWERS = DEFAULT_THRESHOLD + 1


def _draining(*readings: EngineReading, clients: dict[str, int] | None = None) -> Drain:
    """Return a drain that began at 100, with the answers that each client has got since."""
    drain = Drain()
    for client in clients or {}:
        drain.answered(client, 99.0)
    drain.begin(100.0)
    for reading in readings:
        drain.read(reading)
    for client, answers in (clients or {}).items():
        for _ in range(answers):
            drain.answered(client, 101.0)
    return drain


def test_drain_waits_for_two_readings_without_requests() -> None:
    idle, busy = engine(1.0, signals=IDLE), engine(1.0, signals=BUSY)
    assert not _draining(idle).is_drained(101.0)
    assert not _draining(idle, busy, idle).is_drained(101.0)
    assert _draining(busy, idle, idle).is_drained(101.0)
    assert _draining(busy, idle).in_flight == 0
    assert _draining(idle, busy).in_flight == 3


def test_readings_before_the_drain_do_not_count() -> None:
    drain = Drain()
    for _ in range(5):
        drain.read(engine(1.0))
    drain.begin(100.0)
    drain.read(engine(2.0))
    assert not drain.is_drained(100.0)


def test_deferred_requests_are_in_flight() -> None:
    assert not _draining(*[engine(1.0, signals={**IDLE, "deferred": 1})] * 3).is_drained(101.0)


def test_stopped_engine_has_no_requests() -> None:
    assert _draining(engine(1.0, signals=BUSY), down(2.0), down(3.0)).is_drained(101.0)


def test_unreadable_page_keeps_the_last_known_requests() -> None:
    unknown = engine(2.0, signals={}, page_problem="timeout")
    drain = _draining(engine(1.0, signals=BUSY), unknown, unknown)
    assert (drain.in_flight, drain.is_drained(101.0)) == (3, False)


def test_every_client_must_notice_the_drain() -> None:
    idle = [engine(1.0)] * 2
    assert not _draining(*idle, clients={"a": MIN_ANSWERS, "b": MIN_ANSWERS - 1}).is_drained(101.0)
    assert _draining(*idle, clients={"a": MIN_ANSWERS, "b": MIN_ANSWERS}).is_drained(101.0)


def test_drain_waits_for_the_threshold_of_each_check() -> None:
    drain = _draining(engine(1.0), engine(2.0))
    for answers in range(6):
        assert drain.is_drained(101.0) == (answers == 0), answers
        drain.answered("haproxy", 101.0)
        drain.answered("haproxy", 101.0, threshold=5)
    assert drain.is_drained(101.0)


def test_drain_does_not_end_if_requests_are_unknown() -> None:
    drain = _draining(*[engine(1.0, signals={})] * 3, clients={"a": MIN_ANSWERS})
    assert (drain.in_flight, drain.is_drained(101.0)) == (None, False)


@pytest.mark.parametrize(
    ("interval", "silence"), [(30, MAX_SILENCE), (1, MIN_SILENCE)], ids=["every 30 s", "every second"]
)
def test_client_that_has_left_is_not_waited_for(interval: int, silence: float) -> None:
    drain = Drain()
    for at in range(0, 100, interval):
        drain.answered("balancer", float(at))
    drain.begin(100.0)
    drain.read(engine(1.0))
    drain.read(engine(2.0))
    assert not drain.is_drained(at + silence)
    assert drain.is_drained(at + silence + 0.1)


def test_client_that_asked_once_is_not_waited_for_long() -> None:
    drain = _draining(engine(1.0), engine(2.0), clients={"curl": 0})
    assert not drain.is_drained(99.0 + 3 * DEFAULT_INTERVAL)
    assert drain.is_drained(99.1 + 3 * DEFAULT_INTERVAL)


def test_number_of_remembered_clients_is_limited() -> None:
    drain = _draining(engine(1.0), engine(2.0), clients={str(number): MIN_ANSWERS for number in range(MAX_CLIENTS)})
    drain.answered("another", 101.0)
    assert drain.is_drained(101.0)
    drain.answered("another", 102.0 + MAX_SILENCE)
    assert not drain.is_drained(102.0 + MAX_SILENCE), "the others have left"


def test_drain_can_end_and_begin_again() -> None:
    drain = _draining(engine(1.0), engine(2.0), clients={"a": MIN_ANSWERS})
    drain.end()
    assert not drain.is_drained(102.0)
    drain.begin(103.0)
    drain.read(engine(3.0))
    drain.read(engine(4.0))
    assert not drain.is_drained(103.0), "the client has to notice this one as well"

"""A listener takes no more connections at once than it may; who comes above it waits or is turned away."""

from __future__ import annotations

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import bind, fleet_of, running
from tests.support.processes.replicas import Replica, replicas

_DELAY = 0.8


def test_no_more_are_served_at_once_than_the_limit(kind: Kind) -> None:
    """HAProxy leaves them waiting, nginx answers 503, Envoy closes the connection."""
    with replicas("a") as (a,), running(kind, fleet_of([a], listener={"max_connections": 2})) as gateway:
        a.behave(delay=_DELAY)
        load = gateway.load(6, 6, keep_alive=False)
        most = a.max_in_flight
    assert most == 2
    turned_away = {"nginx": {200: 2, 503: 4}, "haproxy": {200: 6}, "envoy": {200: 2, 0: 4}}
    assert load.statuses == turned_away[kind]
    for answer in load.failures:
        assert answer.finished - answer.started < _DELAY


def test_connections_that_ended_count_no_more(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, fleet_of([a], listener={"max_connections": 2})) as gateway:
        gateway.load(40, 1, keep_alive=False).assert_no_failure()
    assert a.requests == 40


def _with_another(pool: list[Replica], own: int, others: int) -> Fleet:
    fleet = fleet_of(pool, listener={"max_connections": own})
    fleet["listeners"]["other"] = {"bind": bind(), "max_connections": others}
    return fleet


def test_a_listener_with_little_room_keeps_to_it_beside_one_with_much(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, _with_another([a], 1, 100)) as gateway:
        a.behave(delay=_DELAY)
        gateway.load(4, 4, keep_alive=False)
        most = a.max_in_flight
        gateway.connect("other").load(4, 4, keep_alive=False).assert_no_failure()
    assert (most, a.max_in_flight) == (1, 4)


def test_a_full_listener_takes_no_room_from_another(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, _with_another([a], 1, 3)) as gateway:
        a.behave(delay=_DELAY)
        held = gateway.send("GET", "/")
        load = gateway.connect("other").load(3, 3, keep_alive=False)
        assert held.result(20).ok
    load.assert_no_failure()

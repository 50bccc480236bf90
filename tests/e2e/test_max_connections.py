"""A listener takes no more connections at once than it may; who comes above it waits or is turned away."""

from __future__ import annotations

from tests.e2e.support.binaries import Kind
from tests.e2e.support.fleet import fleet_of, running
from tests.e2e.support.replicas import replicas

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


def test_each_listener_has_its_own_limit(kind: Kind) -> None:
    with replicas("a") as (a,):
        fleet = fleet_of([a], listener={"max_connections": 1})
        other = fleet_of([a], listener={"max_connections": 3})["listeners"]["gateway"]
        with running(kind, {**fleet, "listeners": {**fleet["listeners"], "other": other}}) as gateway:
            a.behave(delay=_DELAY)
            held = gateway.send("GET", "/")
            load = gateway.connect("other").load(3, 3, keep_alive=False)
            assert held.result(20).ok
    load.assert_no_failure()
    assert a.max_in_flight == 4

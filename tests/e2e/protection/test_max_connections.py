"""A listener has no more open connections than its limit. Further connections wait or are refused."""

from __future__ import annotations

from collections import Counter

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import bind, fleet_of, running
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import at_rest, eventually

_DELAY = 0.5


def test_connections_beyond_the_limit_wait_or_are_refused(kind: Kind) -> None:
    """HAProxy lets them wait, nginx returns 503, Envoy closes the connection."""
    refused = 0 if kind == "haproxy" else 2
    with replicas("a") as (a,), running(kind, fleet_of([a], listener={"max_connections": 2})) as gateway:
        a.held = True
        sent = [gateway.send("GET", "/", timeout=100) for _ in range(4)]
        eventually(lambda: a.in_flight == 2 and sum(each.done() for each in sent) == refused)
        assert at_rest(lambda: a.in_flight) == 2
        a.held = False
        answers = [each.result(100) for each in sent]
        most = a.max_in_flight
    assert most == 2
    statuses = {"nginx": {200: 2, 503: 2}, "haproxy": {200: 4}, "envoy": {200: 2, 0: 2}}
    assert Counter(answer.status for answer in answers) == statuses[kind]


def test_closed_connections_do_not_count(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, fleet_of([a], listener={"max_connections": 2})) as gateway:
        gateway.load(20, 1, keep_alive=False).assert_no_failure()
    assert a.requests == 20


def _two_listener_fleet(pool: list[Replica], own: int, others: int) -> Fleet:
    fleet = fleet_of(pool, listener={"max_connections": own})
    fleet["listeners"]["other"] = {"bind": bind(), "max_connections": others}
    return fleet


def test_small_limit_holds_next_to_a_large_one(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, _two_listener_fleet([a], 1, 100)) as gateway:
        a.behave(delay=_DELAY)
        gateway.load(3, 3, keep_alive=False)
        most = a.max_in_flight
        a.held = True
        sent = [gateway.connect("other").send("GET", "/", timeout=100) for _ in range(3)]
        eventually(lambda: a.in_flight == 3)
        a.held = False
        assert all(each.result(100).ok for each in sent)
    assert most == 1


def test_full_listener_does_not_affect_another(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, _two_listener_fleet([a], 1, 3)) as gateway:
        a.behave(delay=_DELAY)
        held = gateway.send("GET", "/")
        load = gateway.connect("other").load(3, 3, keep_alive=False)
        assert held.result(20).ok
    load.assert_no_failure()

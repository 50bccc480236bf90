"""The fallback pool serves only while the pool of the route has no healthy replica, and repeats no request."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.checks import TCP
from tests.support.processes.client import Client, Load
from tests.support.processes.fleet import fleet_of, pool_of, running, side_by_side
from tests.support.processes.http1 import Request
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import at_rest, eventually

_POST = Request("POST", body=b"y" * 20_000)


def _fleet(own: list[Replica], spare: list[Replica], *, route: dict[str, Any] | None = None, **keys: Any) -> Fleet:
    return fleet_of(
        pool_of(own, **{"health": TCP, **keys}),
        route={"fallback": "spare", **(route or {})},
        pools={"spare": pool_of(spare, health=TCP)},
    )


def _settled(client: Client, wanted: set[str]) -> Load:
    """Return the first twenty answers that come from exactly these replicas."""
    loads: list[Load] = []

    def serves() -> bool:
        loads.append(client.load(20, 2, _POST))
        return set(loads[-1].by_replica) == wanted and not loads[-1].failures

    eventually(serves, pause=0.2)
    return loads[-1]


def test_one_of_three_replicas_keeps_all_requests(kind: Kind) -> None:
    algorithms = ("least_request", "round_robin")
    with replicas("a", "b", "c", "spare") as (a, b, c, spare):
        fleets = {
            algorithm.replace("_", "-"): _fleet([a, b, c], [spare], balance={"algorithm": algorithm})
            for algorithm in algorithms
        }
        with running(kind, side_by_side(fleets)) as gateway:
            clients = {name: gateway.connect(name) for name in fleets}
            for client in clients.values():
                client.load(20, 4, _POST).assert_no_failure()
            a.refuse()
            b.refuse()
            started = {name: client.send_load(100, 4, _POST, gap=0.04) for name, client in clients.items()}
            during = {name: load.result(60) for name, load in started.items()}
            for client in clients.values():
                _settled(client, {"c"})
            after = {name: client.load(80, 8, _POST) for name, client in clients.items()}
    for name in fleets:
        if kind == "haproxy":  # it tries another replica than the last, and therefore first the two dead ones in turn
            assert during[name].statuses[200] >= 80, name
            assert set(during[name].statuses) <= {200, 503}, name
        else:
            during[name].assert_no_failure()
        after[name].assert_no_failure()
        assert after[name].by_replica == {"c": 80}, name
    assert spare.requests == 0


def test_one_of_ten_replicas_keeps_all_requests(kind: Kind) -> None:
    names = [f"r{number}" for number in range(10)]
    with replicas(*names, "spare") as (*own, spare), running(kind, _fleet(own, [spare])) as gateway:
        for replica in own[1:]:
            replica.refuse()
        _settled(gateway, {"r0"})
        load = gateway.load(60, 4, _POST)
    load.assert_no_failure()
    assert (load.by_replica, spare.requests) == ({"r0": 60}, 0)


def test_fallback_serves_until_a_replica_recovers(kind: Kind) -> None:
    with replicas("a", "b", "spare") as (a, b, spare), running(kind, _fleet([a, b], [spare])) as gateway:
        a.refuse()
        b.refuse()
        during = gateway.load(60, 4, _POST, gap=0.03)
        _settled(gateway, {"spare"})
        bodies = {seen.body for seen in spare.seen}
        a.accept()
        _settled(gateway, {"a"})
    assert set(during.statuses) <= {200, 503}  # 503: before the checks had noticed
    assert set(during.by_replica) <= {"spare"}
    assert bodies == {_POST.body}


def test_without_any_replica_the_answer_is_503(kind: Kind) -> None:
    with replicas("a", "spare") as (a, spare), running(kind, _fleet([a], [spare])) as gateway:
        a.refuse()
        spare.refuse()
        answers = [gateway.post() for _ in range(4)]
    assert {(answer.status, answer.header("content-type")) for answer in answers} == {(503, "application/json")}


def test_post_that_reached_a_replica_is_not_repeated(kind: Kind) -> None:
    """nginx's error_page would repeat it: it catches each 502."""
    with ExitStack() as stack:
        members = {fault: stack.enter_context(replicas("a", "b", "spare")) for fault in ("reset", "close")}
        fleets = {fault: _fleet([a, b], [spare]) for fault, (a, b, spare) in members.items()}
        gateway = stack.enter_context(running(kind, side_by_side(fleets)))
        for fault, (a, b, spare) in members.items():
            a.behave(fault=fault)
            b.behave(fault=fault)
            answers = [gateway.connect(fault).post(body=_POST.body) for _ in range(6)]
            statuses = Counter(answer.status for answer in answers)
            assert statuses == Counter({502: a.requests + b.requests, 200: spare.requests}), fault
            assert answers[0].status == 502, fault  # later both may be ejected, and then the fallback serves


def test_error_of_a_replica_is_passed_on(kind: Kind) -> None:
    health = {**TCP, "passive": {"consecutive_5xx": 100, "error_rate": {"min_requests": 100}}}
    with replicas("a", "spare") as (a, spare), running(kind, _fleet([a], [spare], health=health)) as gateway:
        for status in (500, 502, 503, 504):
            a.behave(status=status)
            a.forget()
            answers = [gateway.post() for _ in range(4)]
            assert (status, a.requests, spare.requests) == (status, 4, 0)
            assert [(answer.status, answer.replica) for answer in answers] == [(status, "a")] * 4


def test_silent_replica_does_not_trigger_the_fallback(kind: Kind) -> None:
    route = {"timeouts": {"idle": "1s"}}
    with replicas("a", "spare") as (a, spare), running(kind, _fleet([a], [spare], route=route)) as gateway:
        a.held = True
        answer = gateway.post()
        assert (a.requests, spare.requests) == (1, 0)
    assert answer.status == 504


def test_fallback_serves_for_a_drained_pool(kind: Kind) -> None:
    with replicas("a", "b", "spare") as (a, b, spare):
        fleet = _fleet([a, b], [spare])
        for entry in fleet["pools"]["pool"]["replicas"]:
            entry["drain"] = True
        with running(kind, fleet) as gateway:
            load = gateway.load(20, 2, _POST)
    load.assert_no_failure()
    assert load.by_replica == {"spare": 20}


def test_each_pool_of_a_split_has_the_fallback(kind: Kind) -> None:
    with replicas("a", "b", "spare") as (a, b, spare):
        fleet = _fleet([a], [spare])
        fleet["pools"]["second"] = pool_of([b], health=TCP)
        route = {"match": {"path_prefix": "/"}, "split": {"pool": 1, "second": 1}, "fallback": "spare"}
        fleet["routes"] = {"everything": route}
        with running(kind, fleet) as gateway:
            a.refuse()
            _settled(gateway, {"b", "spare"})
            load = gateway.load(300, 4, _POST)
    load.assert_no_failure()
    assert Counter(load.by_replica)["a"] == 0
    assert load.shares() == pytest.approx({"b": 0.5, "spare": 0.5}, abs=0.16)


@pytest.mark.parametrize("kind", ["nginx", "envoy"])
def test_request_to_the_fallback_is_mirrored_once(kind: Kind) -> None:
    with replicas("a", "spare", "shadow") as (a, spare, shadow):
        fleet = _fleet([a], [spare], route={"mirror": {"pool": "shadow"}})
        fleet["pools"]["shadow"] = pool_of([shadow])
        with running(kind, fleet) as gateway:
            a.refuse()
            _settled(gateway, {"spare"})
            at_rest(lambda: shadow.requests)  # copies may be in transit
            for replica in (spare, shadow):
                replica.forget()
            gateway.load(20, 1, _POST).assert_no_failure()
            eventually(lambda: shadow.requests >= 20)
            assert (spare.requests, at_rest(lambda: shadow.requests)) == (20, 20)


def test_fallback_serves_without_active_checks(kind: Kind) -> None:
    with replicas("a", "b", "c", "spare") as (*own, spare):
        fleet = fleet_of(own, route={"fallback": "spare"}, pools={"spare": pool_of([spare])})
        with running(kind, fleet) as gateway:
            for replica in own:
                replica.refuse()
            load = gateway.load(30, 1, _POST, gap=0.05)  # Envoy's main thread ejects, a moment after a failure
    assert load.statuses[200] >= 25, load.statuses
    assert set(load.statuses) <= {200, 503}
    assert all(answer.replica == "spare" for answer in load.responses[-20:])


def test_one_replica_keeps_all_requests_without_checks(kind: Kind) -> None:
    with replicas("a", "b", "c", "spare") as (a, b, c, spare):
        fleet = fleet_of([a, b, c], route={"fallback": "spare"}, pools={"spare": pool_of([spare])})
        with running(kind, fleet) as gateway:
            a.refuse()
            b.refuse()
            load = gateway.load(100, 4, _POST)
    if kind != "haproxy":  # it tries another replica than the last, and therefore first the two dead ones in turn
        load.assert_no_failure()
    assert (load.statuses[200] >= 90, set(load.by_replica), spare.requests) == (True, {"c"}, 0)


def test_envoy_reports_limits_that_block_the_fallback() -> None:
    with replicas("a", "spare") as (a, spare):
        pool = pool_of([a], health={"passive": {"max_ejection": "50%"}})
        route = {"fallback": "spare", "retry": {"budget": "20%"}}
        with running("envoy", fleet_of(pool, route=route, pools={"spare": pool_of([spare])})) as gateway:
            assert "warning LB429 pools.pool.health.passive.max_ejection" in gateway.messages
            assert "warning LB439 routes.everything.retry.budget" in gateway.messages

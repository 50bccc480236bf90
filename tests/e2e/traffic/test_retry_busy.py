"""`replica_busy` retries only requests that a replica declined before it processed them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Binary, Kind, is_rendered_for
from tests.support.processes.fleet import fleet_of, pool_of, running, side_by_side
from tests.support.processes.http1 import Request
from tests.support.processes.ports import free_pair
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.scripted_picker import scripted_picker
from tests.support.processes.waiting import eventually

RETRY = {"attempts": 1, "when": ["connect_failure", "replica_busy"]}
BODY = b"x" * 50_000
_STRICT = {"health": {"passive": {"consecutive_5xx": 2, "consecutive_connect_failures": 2}}}


@pytest.fixture(params=("nginx", "haproxy", pytest.param("haproxy-2.8", marks=pytest.mark.nightly), "envoy"))
def edge(request: pytest.FixtureRequest) -> Binary:
    chosen: Binary = request.param
    return chosen


def _fleet(members: list[Replica], pool: dict[str, Any] | None = None, **retry: Any) -> Fleet:
    """Return a fleet with round robin, so that each replica is tried first in its turn; the checks of responses are
    strict."""
    keys = {"balance": {"algorithm": "round_robin"}, **(pool or {})}
    return fleet_of(pool_of(members, **keys), route={"retry": {**RETRY, **retry}})


def _reached(pool: list[Replica]) -> int:
    return sum(replica.requests for replica in pool)


@pytest.mark.parametrize("edge", ["nginx", "haproxy", "haproxy-2.8", "envoy"])
def test_busy_answer_is_retried_once_at_another_replica(edge: Binary) -> None:
    with replicas("a", "b") as (a, b), running(edge, _fleet([a, b])) as gateway:
        a.behave(status=503)
        posts = [gateway.post(body=BODY) for _ in range(8)]
        gets = [gateway.request("GET", "/") for _ in range(4)]
        events = gateway.request("POST", "/sse?n=3&gap=0.01", body=BODY)
        declined = a.requests
        bodies = {len(seen.body) for seen in b.seen if seen.method == "POST"}
        lines = gateway.access_log(13)
    assert {(answer.status, answer.replica) for answer in [*posts, *gets]} == {(200, "b")}
    assert (events.ok, events.header("x-replica")) == (True, "b")
    assert (b.requests, bodies) == (13, {len(BODY)})
    assert 0 < declined <= 13
    assert {line["replica"] for line in lines} == {"b"}
    assert sum(line["retries"] for line in lines) == declined


def test_client_gets_the_busy_answer_if_all_are_busy(edge: Binary) -> None:
    with replicas("a", "b") as pool, running(edge, _fleet(pool)) as gateway:
        for replica in pool:
            replica.behave(status=503, headers=(("retry-after", "7"),))
        answers = [gateway.post() for _ in range(4)]
        reached = _reached(pool)
    assert {(answer.status, answer.header("retry-after"), answer.json["method"]) for answer in answers} == {
        (503, "7", "POST")
    }
    assert reached == 8


def test_broken_connection_is_not_retried(edge: Binary) -> None:
    faults: tuple[Any, ...] = ("reset", "close")
    with ExitStack() as stack:
        members = {fault: stack.enter_context(replicas("a", "b")) for fault in faults}
        gateway = stack.enter_context(running(edge, side_by_side({fault: _fleet(members[fault]) for fault in faults})))
        for fault, pool in members.items():
            for replica in pool:
                replica.behave(fault=fault)
            answers = [gateway.connect(fault).post(body=BODY) for _ in range(4)]
            assert {answer.status for answer in answers} <= {502, 503}, fault
            assert _reached(pool) == 4, fault


def test_other_statuses_are_not_retried(edge: Binary) -> None:
    statuses = (500, 502, 504, 429, 404)
    passive = {"health": {"passive": {"consecutive_5xx": 100, "error_rate": {"min_requests": 100}}}}
    with replicas("a", "b") as pool, running(edge, _fleet(pool, passive)) as gateway:
        for number, status in enumerate(statuses, 1):
            for replica in pool:
                replica.behave(status=status)
            assert gateway.post(body=b"{}").status == status
            assert _reached(pool) == number


def test_third_replica_serves_after_refusal_and_busy(edge: Binary) -> None:
    """nginx does not leave a busy replica after another replica has refused the connection."""
    with replicas("a", "b", "c") as (a, b, c), running(edge, _fleet([a, b, c], attempts=2)) as gateway:
        a.refuse()
        b.behave(status=503)
        answers = [gateway.post(body=BODY) for _ in range(9)]
    served = [answer.status for answer in answers].count(200)
    assert {answer.status for answer in answers} <= {200, 503}
    assert (served > 0 if edge == "nginx" else served == 9, c.requests) == (True, served)


def test_busy_answers_eject_no_replica(kind: Kind) -> None:
    if kind == "haproxy" and is_rendered_for(kind, "2.7"):
        pytest.skip("HAProxy counts them, and lbctl says so: the next test")
    with replicas("a", "b") as (a, b), running(kind, _fleet([a, b], _STRICT)) as gateway:
        a.behave(status=503)
        gateway.load(20, 1, request=Request("POST", body=BODY)).assert_no_failure()
        a.behave(status=200)
        shares = gateway.load(20, 1, request=Request("POST", body=BODY)).shares()
    assert shares == {"a": 0.5, "b": 0.5}


def test_haproxy_2_8_counts_busy_answers_and_reports_it() -> None:
    with replicas("a", "b") as (a, b):
        fleet = {**_fleet([a, b], _STRICT), "proxies": {"edge": {"kind": "haproxy", "version": "2.8"}}}
        with running("haproxy-2.8", fleet) as gateway:
            a.behave(status=503)
            gateway.load(20, 1, request=Request("POST", body=BODY)).assert_no_failure()
            messages = gateway.messages
    assert a.requests == 2
    assert "HAProxy counts each busy response of pool towards consecutive_5xx" in messages


@pytest.mark.parametrize("edge", ["nginx", "envoy"])
def test_busy_statuses_can_include_429(edge: Binary) -> None:
    with replicas("a", "b") as (a, b), running(edge, _fleet([a, b], busy_statuses=[429])) as gateway:
        a.behave(status=429)
        assert {gateway.post().replica for _ in range(4)} == {"b"}
        b.behave(status=503)
        assert {gateway.post().status for _ in range(4)} == {503}


def test_other_route_of_the_pool_does_not_retry(edge: Binary) -> None:
    other = {"plain": {"match": {"path_prefix": "/plain"}, "pool": "pool", "retry": {"attempts": 1}}}
    with replicas("a", "b") as pool, running(edge, _with_route(_fleet(pool), other)) as gateway:
        for replica in pool:
            replica.behave(status=503)
        assert gateway.request("POST", "/plain", body=BODY).status == 503
        assert _reached(pool) == 1
        assert gateway.post(body=BODY).status == 503
        assert _reached(pool) == 3


def _with_route(fleet: Fleet, more: dict[str, Any]) -> Fleet:
    return {**fleet, "routes": {**fleet["routes"], **more}}


def test_busy_pool_does_not_use_the_fallback(kind: Kind) -> None:
    with replicas("a", "b", "spare") as (a, b, spare):
        fleet = _fleet([a, b])
        fleet["pools"]["other"] = pool_of([spare])
        fleet["routes"]["everything"]["fallback"] = "other"
        with running(kind, fleet) as gateway:
            a.behave(status=503)
            b.behave(status=503)
            assert gateway.post(body=BODY).status == 503
            a.refuse()
            b.refuse()
            eventually(lambda: gateway.post(body=BODY).replica == "spare")


@pytest.mark.parametrize("edge", ["nginx", "haproxy", pytest.param("haproxy-2.8", marks=pytest.mark.nightly)])
def test_picker_learns_of_a_busy_replica(edge: Binary) -> None:
    port = free_pair()
    with replicas("a", "b") as (a, b), scripted_picker(port, lambda asked: "a") as picker:
        pick = {"session": ["x-session-id"], "prefix": "off", "otherwise": "round_robin", "timeout": "10s"}
        fleet = _fleet([a, b], {"balance": {"algorithm": "pick", "pick": pick}})
        fleet["control"] = {"picker": {"bind": f"127.0.0.1:{port}"}}
        with running(edge, fleet) as gateway:
            a.behave(status=503)
            assert {gateway.post(body=BODY).replica for _ in range(4)} == {"b"}
            assert (a.requests, b.requests) == (4, 4)
            eventually(lambda: len(picker.moved) == 4)
            a.behave(status=200)
            assert gateway.post(body=BODY).replica == "a"
            a.refuse()
            assert gateway.post(body=BODY).replica == "b"
    assert {asked.target for asked in picker.asked} == {"/pick/pool?busy=1"}


def test_each_attempt_at_a_hosted_api_is_complete(kind: Kind) -> None:
    with replicas("a", "b") as (a, b):
        upstream = {"host": "api.example.com", "path_prefix": "/openai", "headers": {"x-key": {"file": "key"}}}
        fleet = _fleet([a, b], {"upstream": upstream})
        with running(kind, fleet, files={"key": "sk-of-provider\n"}) as gateway:
            a.behave(status=503)
            answers = {gateway.request("POST", "/v1/chat", body=BODY).replica for _ in range(4)}
        sent = {(seen.path, seen.header("host"), seen.header("x-key"), seen.body) for seen in (*a.seen, *b.seen)}
    assert (answers, a.requests > 0) == ({"b"}, True)
    assert sent == {("/openai/v1/chat", "api.example.com", "sk-of-provider", BODY)}


@pytest.mark.parametrize("edge", ["haproxy", pytest.param("haproxy-2.8", marks=pytest.mark.nightly), "envoy"])
def test_client_with_affinity_leaves_a_busy_replica(edge: Binary) -> None:
    with replicas("a", "b") as (a, b), running(edge, _fleet([a, b], {"affinity": {"cookie": "kept"}})) as gateway:
        first = gateway.request("GET", "/")
        cookie = (first.header("set-cookie") or "").partition(";")[0]
        home, other = (a, b) if first.replica == "a" else (b, a)
        home.behave(status=503)
        assert {gateway.post("/", BODY, {"cookie": cookie}).replica for _ in range(3)} == {other.name}
        assert home.requests == 4

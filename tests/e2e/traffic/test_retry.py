"""A request that reached no replica is retried on another; a request that a replica got is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import fleet_of, pool_of, running
from tests.support.processes.http1 import Request
from tests.support.processes.replicas import Replica, replicas


def _fleet(members: list[Replica], passive: Mapping[str, Any] | None = None, **retry: Any) -> Fleet:
    """Return a fleet with round robin, so that each replica is tried first in its turn."""
    pool = pool_of(members, balance={"algorithm": "round_robin"}, health={"passive": dict(passive or {})})
    return fleet_of(pool, route={"retry": retry} if retry else {})


def test_refused_connection_is_retried_at_another_replica(kind: Kind) -> None:
    body = b"x" * 50_000
    with replicas("a", "b") as (a, b), running(kind, _fleet([a, b])) as gateway:
        a.refuse()
        load = gateway.load(40, 1, lambda number: Request("POST", body=body) if number % 2 else Request())
        arrived = {(seen.method, len(seen.body)) for seen in b.seen}
    load.assert_no_failure()
    assert arrived == {("POST", len(body)), ("GET", 0)}


def test_two_of_three_replicas_can_refuse(kind: Kind) -> None:
    """The requests are sequential: of concurrent requests, HAProxy may send one to both refusing replicas in turn."""
    with replicas("a", "b", "c") as pool, running(kind, _fleet(pool)) as gateway:
        pool[0].refuse()
        pool[1].refuse()
        load = gateway.load(60)
    load.assert_no_failure()
    assert load.by_replica == {"c": 60}


def test_concurrent_requests_survive_a_refusing_replica(kind: Kind) -> None:
    """With least_request the refusing replica looks idle, and is chosen first for nearly all requests."""
    with replicas("a", "b") as (a, b), running(kind, fleet_of([a, b])) as gateway:
        a.refuse()
        b.behave(delay=0.05)
        load = gateway.load(150, concurrency=50)
    load.assert_no_failure()
    assert load.by_replica == {"b": 150}


def test_replica_that_stops_under_load_costs_no_request(kind: Kind) -> None:
    """The connections are the clients' own; connections to the replica break while idle or are refused when opened."""
    with replicas("a", "b") as (a, b), running(kind, _fleet([a, b])) as gateway:
        gateway.load(20, concurrency=4).assert_no_failure()
        a.refuse()
        load = gateway.load(100, concurrency=4)
    load.assert_no_failure()
    assert load.by_replica == {"b": 100}


def test_answer_without_any_replica_is_503_in_json(kind: Kind) -> None:
    with replicas("a", "b") as (a, b), running(kind, _fleet([a, b])) as gateway:
        a.refuse()
        b.refuse()
        answers = [gateway.post() for _ in range(6)]
    assert [(answer.status, answer.header("content-type")) for answer in answers] == [(503, "application/json")] * 6
    assert answers[0].json == {
        "error": {"message": "no replica available", "type": "unavailable", "param": None, "code": "unavailable"}
    }


def test_answer_of_a_replica_is_passed_on_without_retry(kind: Kind) -> None:
    cases = [(status, method) for status in (500, 502, 503, 504, 429) for method in ("POST", "GET")]
    passive = {"consecutive_5xx": 100, "error_rate": {"min_requests": 100}}
    with replicas("a", "b") as pool, running(kind, _fleet(pool, passive=passive)) as gateway:
        for number, (status, method) in enumerate(cases, 1):
            for replica in pool:
                replica.behave(status=status, headers=(("retry-after", "7"),))
            answer = gateway.request(method, "/", body=b"{}")
            assert (answer.status, answer.header("retry-after"), answer.json["method"]) == (status, "7", method)
            assert sum(replica.requests for replica in pool) == number


def test_post_that_broke_off_is_not_retried(kind: Kind) -> None:
    with replicas("a", "b") as (a, b), running(kind, _fleet([a, b])) as gateway:
        a.behave(fault="reset")
        b.behave(fault="close")
        answers = [gateway.post(body=b"x" * 1000) for _ in range(4)]
    assert {(answer.status, answer.header("content-type")) for answer in answers} == {(502, "application/json")}
    assert {answer.json["error"]["type"] for answer in answers} == {"bad_gateway"}
    assert (a.requests + b.requests, min(a.requests, b.requests) > 0) == (4, True)


def test_truncated_answer_is_an_error_without_retry(kind: Kind) -> None:
    with replicas("a", "b") as pool, running(kind, _fleet(pool)) as gateway:
        for replica in pool:
            replica.behave(fault="truncate")
        answers = [gateway.request(method, "/") for method in ("GET", "POST")]
        reached = sum(replica.requests for replica in pool)
    assert [answer.ok for answer in answers] == [False] * 2
    assert reached == 2


def test_reset_is_retried_on_an_idempotent_route(kind: Kind) -> None:
    with replicas("a", "b") as (a, b), running(kind, _fleet([a, b], idempotent=True)) as gateway:
        a.behave(fault="reset")
        answers = [gateway.post(body=b"x" * 1000) for _ in range(4)]
        bodies = {seen.body for seen in b.seen}
    assert [answer.replica for answer in answers] == ["b"] * 4
    assert a.requests > 0
    assert bodies == {b"x" * 1000}


def test_5xx_is_not_retried_on_an_idempotent_route(kind: Kind) -> None:
    with replicas("a", "b") as pool, running(kind, _fleet(pool, idempotent=True)) as gateway:
        for replica in pool:
            replica.behave(status=503)
        answers = [gateway.post() for _ in range(4)]
        reached = sum(replica.requests for replica in pool)
    assert ({answer.status for answer in answers}, reached) == ({503}, 4)


def test_zero_attempts_disable_retries(kind: Kind) -> None:
    with replicas("a", "b") as (a, b), running(kind, _fleet([a, b], attempts=0)) as gateway:
        a.refuse()
        answers = [gateway.post() for _ in range(4)]
    assert 1 <= [answer.status for answer in answers].count(503) <= 3
    assert {answer.status for answer in answers} == {200, 503}

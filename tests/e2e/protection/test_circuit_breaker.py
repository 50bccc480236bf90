"""Limits of requests in flight per replica and per pool: requests beyond them wait or get a 503."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.processes.at_once import at_once
from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import fleet_of, pool_of, running
from tests.support.processes.http1 import Request, Response
from tests.support.processes.replicas import Replica, replicas


def _burst(
    kind: Kind, members: list[Replica], refused: int | None, quiet: float = 0.5, **breaker: Any
) -> list[Response]:
    """Return the responses to twelve concurrent requests.

    The proxy rejects `refused` of them while the others are served or wait.
    """
    served = sum(breaker.get("per_replica", {}).values()) * len(members) if kind == "haproxy" else 0
    with running(kind, fleet_of(pool_of(members, circuit_breaker=breaker))) as gateway:
        return at_once([(gateway, Request())] * 12, members, refused, served_first=served, quiet=quiet)


def _assert_refused_in_json(answers: list[Response], refused: int) -> None:
    failures = [answer for answer in answers if not answer.ok]
    assert len(failures) == refused
    for answer in failures:
        assert (answer.status, answer.header("content-type"), answer.error) == (503, "application/json", "")
        assert answer.json["error"]["type"] in ("overloaded", "unavailable")
        assert answer.header_list("retry-after") == ["1"]


@pytest.mark.parametrize("limit", ["max_requests", "max_connections"])
def test_replica_has_no_more_in_flight_than_its_limit(kind: Kind, limit: str) -> None:
    """With nginx, no request waits.

    With the others, as many wait as are served, and with a limit of connections all.
    """
    refused_at_once = {"nginx": 8, "haproxy": 4 if limit == "max_requests" else None, "envoy": None}[kind]
    with replicas("a", "b") as pool:
        quiet = 2.0 if (kind, limit) == ("envoy", "max_requests") else 0.5
        answers = _burst(kind, pool, refused_at_once, quiet=quiet, per_replica={limit: 2})
        most = [replica.max_in_flight for replica in pool]
    assert max(most) == 2
    refused = sum(not answer.ok for answer in answers)
    _assert_refused_in_json(answers, refused)
    if limit == "max_requests":
        assert refused in {"nginx": [8], "haproxy": [4], "envoy": range(4, 10)}[kind]
    else:
        assert refused == (8 if kind == "nginx" else 0)


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
def test_requests_beyond_the_replica_limits_wait(kind: Kind) -> None:
    with replicas("a", "b") as pool:
        answers = _burst(kind, pool, None, per_replica={"max_requests": 2}, max_pending_requests=100)
        most = [replica.max_in_flight for replica in pool]
    _assert_refused_in_json(answers, 0)
    assert max(most) == 2


def test_haproxy_limits_waiting_requests() -> None:
    """Four are served, three wait, five are answered immediately."""
    with replicas("a", "b") as pool:
        answers = _burst("haproxy", pool, 5, per_replica={"max_requests": 2}, max_pending_requests=3)
    _assert_refused_in_json(answers, 5)


def test_envoy_limits_waiting_requests() -> None:
    """For Envoy, requests also wait while their connection is opened."""
    with replicas("a", "b") as pool:
        answers = _burst("envoy", pool, None, quiet=2.0, per_replica={"max_requests": 2}, max_pending_requests=3)
    served = sum(answer.ok for answer in answers)
    assert 3 <= served <= 7
    _assert_refused_in_json(answers, 12 - served)


@pytest.mark.parametrize("limit", ["max_requests", "max_connections"])
@pytest.mark.parametrize("most", [1, 3])
def test_nginx_refuses_requests_beyond_the_replica_limit(limit: str, most: int) -> None:
    """Idle connections do not count: in a second burst the same number passes."""
    breaker = {"per_replica": {limit: most}}
    with replicas("a", "b") as pool, running("nginx", fleet_of(pool_of(pool, circuit_breaker=breaker))) as gateway:
        bursts = []
        for number in (1, 2):
            bursts.append(at_once([(gateway, Request())] * 12, pool, 12 - 2 * most))
            gateway.access_log(12 * number)  # nginx counts a request until it has logged it
    assert [replica.max_in_flight for replica in pool] == [most, most]
    for answers in bursts:
        _assert_refused_in_json(answers, 12 - 2 * most)


def test_nginx_lets_no_request_wait() -> None:
    with replicas("a", "b") as pool:
        answers = _burst("nginx", pool, 8, per_replica={"max_requests": 2}, max_pending_requests=3)
    _assert_refused_in_json(answers, 8)


def test_pool_has_no_more_in_flight_than_its_limit(kind: Kind) -> None:
    with replicas("a", "b") as pool:
        answers = _burst(kind, pool, 7, max_requests=5)
        reached = sum(replica.requests for replica in pool)
    assert reached == 5
    _assert_refused_in_json(answers, 7)


_PER_REPLICA = {"max_requests": 4, "per_replica": {"max_requests": 2}}


def test_nginx_replica_limit_holds_below_the_pool_limit() -> None:
    with replicas("a", "b") as pool:
        answers = _burst("nginx", pool, 8, max_requests=100, per_replica={"max_requests": 2})
        assert [replica.max_in_flight for replica in pool] == [2, 2]
    _assert_refused_in_json(answers, 8)


@pytest.mark.parametrize(
    ("breaker", "max_ejection", "served"),
    [({"max_requests": 4}, "100%", 12), (_PER_REPLICA, "50%", 8), (_PER_REPLICA, "100%", 4), ({}, "100%", 12)],
)
def test_nginx_warns_if_a_fallback_ignores_the_breaker(breaker: dict[str, Any], max_ejection: str, served: int) -> None:
    with replicas("gone", "a", "b") as (gone, *spare):
        passive = {"passive": {"max_ejection": max_ejection}}
        fallback = pool_of(spare, circuit_breaker=breaker, health=passive)
        fleet = fleet_of([gone], route={"fallback": "spare"}, pools={"spare": fallback})
        with running("nginx", fleet) as gateway:
            gone.refuse()
            answers = at_once([(gateway, Request("POST", body=b"x"))] * 12, spare, 12 - served)
    _assert_refused_in_json(answers, 12 - served)
    holds = served <= breaker.get("max_requests", 12)
    assert ("warning LB472 pools.spare.circuit_breaker" not in gateway.messages) == holds


def test_pool_without_limits_serves_a_burst(kind: Kind) -> None:
    with replicas("a", "b") as pool, running(kind, fleet_of(pool)) as gateway:
        for replica in pool:
            replica.behave(delay=0.4)
        load = gateway.load(300, concurrency=300)
    load.assert_no_failure()

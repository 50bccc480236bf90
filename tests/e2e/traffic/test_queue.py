"""Requests that wait for a busy replica wait no longer than the pool's queue timeout."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.support.binaries import Kind
from tests.e2e.support.client import Load
from tests.e2e.support.fleet import fleet_of, pool_of, running
from tests.e2e.support.replicas import Replica, replicas

_BUSY = 1.5


def _burst(kind: Kind, replica: Replica, queue: str, route: dict[str, Any] | None = None) -> tuple[Load, str]:
    """Three requests, shortly after each other, for a replica that takes one: at the same instant two of HAProxy's
    threads may both take its last place."""
    replica.behave(delay=_BUSY)
    breaker = {"per_replica": {"max_requests": 1}, "max_requests": 100, "max_pending_requests": 100}
    pool = pool_of([replica], circuit_breaker=breaker, timeouts={"queue": queue})
    with running(kind, fleet_of(pool, route=route)) as gateway:
        return gateway.load(3, 3, gap=0.3), gateway.messages


def test_haproxy_lets_nobody_wait_longer_than_the_queue_timeout() -> None:
    with replicas("a") as (a,):
        load, _ = _burst("haproxy", a, "400ms")
    assert (load.statuses, a.max_in_flight, a.requests) == ({200: 1, 503: 2}, 1, 1)
    for answer in load.failures:
        assert 0.35 < answer.seconds < _BUSY
        assert (answer.header("content-type"), answer.json["error"]["type"]) == ("application/json", "unavailable")
        assert answer.header_list("retry-after") == ["1"]


def test_haproxy_serves_one_after_the_other_who_waits_within_it() -> None:
    with replicas("a") as (a,):
        load, _ = _burst("haproxy", a, "20s")
    load.assert_no_failure()
    assert a.max_in_flight == 1
    assert load.percentile(100) > 2.5 * _BUSY


def test_haproxys_log_tells_how_long_it_was() -> None:
    with replicas("a") as (a,):
        a.behave(delay=2)
        pool = pool_of([a], circuit_breaker={"per_replica": {"max_requests": 1}})
        with running("haproxy", fleet_of(pool)) as gateway:
            gateway.load(2, 2, gap=0.1).assert_no_failure()
            first, second = sorted(gateway.access_log(2), key=lambda line: line["t_queue"])
    assert first["t_queue"] < 500 < 1000 < second["t_queue"]


@pytest.mark.parametrize("kind", ["nginx", "envoy"])
def test_a_proxy_without_a_queue_timeout_says_so(kind: Kind) -> None:
    with replicas("a") as (a,):
        load, messages = _burst(kind, a, "400ms")
    assert "warning LB471" in messages
    assert a.max_in_flight == 1
    assert load.statuses == ({200: 3} if kind == "envoy" else {200: 1, 503: 2})


def test_on_envoy_the_total_timeout_bounds_the_wait() -> None:
    with replicas("a") as (a,):
        load, _ = _burst("envoy", a, "400ms", {"timeouts": {"request": "2s"}})
    assert load.statuses == {200: 1, 504: 2}
    assert load.percentile(100) < 2 * _BUSY

"""Limits of what a replica and a pool are given at once: what is beyond them waits or is answered 503."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.support.binaries import Kind
from tests.e2e.support.client import Load
from tests.e2e.support.fleet import fleet_of, pool_of, running
from tests.e2e.support.replicas import Replica, replicas

_DELAY = 0.4


def _burst(kind: Kind, members: list[Replica], **breaker: Any) -> Load:
    """Twelve requests at once, each of some time."""
    for replica in members:
        replica.behave(delay=_DELAY)
    with running(kind, fleet_of(pool_of(members, circuit_breaker=breaker))) as gateway:
        return gateway.load(12, concurrency=12)


def _assert_refused_at_once_in_json(load: Load) -> None:
    first = min(answer.finished for answer in load.responses if answer.ok)
    for answer in load.failures:
        assert (answer.status, answer.header("content-type"), answer.error) == (503, "application/json", "")
        assert answer.json["error"]["type"] in ("overloaded", "unavailable")
        assert answer.header_list("retry-after") == ["1"]
        assert answer.finished < first


@pytest.mark.parametrize("limit", ["max_requests", "max_connections"])
def test_no_replica_has_more_at_once_than_its_limit(kind: Kind, limit: str) -> None:
    with replicas("a", "b") as pool:
        load = _burst(kind, pool, per_replica={limit: 2})
        most = [replica.max_in_flight for replica in pool]
    assert max(most) == 2
    _assert_refused_at_once_in_json(load)


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
def test_what_is_beyond_the_replicas_limits_waits(kind: Kind) -> None:
    with replicas("a", "b") as pool:
        load = _burst(kind, pool, per_replica={"max_requests": 2}, max_pending_requests=100)
    load.assert_no_failure()
    assert load.percentile(100) > 2 * _DELAY


@pytest.mark.parametrize(
    ("kind", "least"),
    [("haproxy", 7), ("envoy", 3)],  # for Envoy also those wait whose connection is still being opened
)
def test_no_more_wait_than_the_pools_limit(kind: Kind, least: int) -> None:
    """Four are served, three wait, five are answered at once."""
    with replicas("a", "b") as pool:
        load = _burst(kind, pool, per_replica={"max_requests": 2}, max_pending_requests=3)
    assert least <= load.statuses[200] <= 7
    _assert_refused_at_once_in_json(load)


@pytest.mark.parametrize("limit", ["max_requests", "max_connections"])
@pytest.mark.parametrize("most", [1, 3])
def test_nginx_gives_a_replica_as_many_as_its_limit_and_refuses_the_rest(limit: str, most: int) -> None:
    """Idle ones count no more: after a burst the same number passes again."""
    with replicas("a", "b") as pool:
        for replica in pool:
            replica.behave(delay=_DELAY)
        with running("nginx", fleet_of(pool_of(pool, circuit_breaker={"per_replica": {limit: most}}))) as gateway:
            loads = [gateway.load(12, concurrency=12) for _ in range(2)]
    assert [load.statuses for load in loads] == [{200: 2 * most, 503: 12 - 2 * most}] * 2
    assert [replica.max_in_flight for replica in pool] == [most, most]
    for load in loads:
        _assert_refused_at_once_in_json(load)


def test_on_nginx_nothing_waits() -> None:
    with replicas("a", "b") as pool:
        load = _burst("nginx", pool, per_replica={"max_requests": 2}, max_pending_requests=3)
    assert load.statuses == {200: 4, 503: 8}
    _assert_refused_at_once_in_json(load)


def test_a_pool_has_no_more_at_once_than_its_limit(kind: Kind) -> None:
    with replicas("a", "b") as pool:
        load = _burst(kind, pool, max_requests=5)
        reached = sum(replica.requests for replica in pool)
    assert load.statuses == {200: 5, 503: 7}
    assert reached == 5
    _assert_refused_at_once_in_json(load)


def test_without_limits_of_its_own_a_pool_takes_a_burst(kind: Kind) -> None:
    with replicas("a", "b") as pool, running(kind, fleet_of(pool)) as gateway:
        for replica in pool:
            replica.behave(delay=_DELAY)
        load = gateway.load(400, concurrency=400)
    load.assert_no_failure()

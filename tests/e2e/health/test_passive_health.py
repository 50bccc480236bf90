"""A replica that fails clients' requests is ejected for a while, and the other replica continues to serve."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import fleet_of, pool_of, running
from tests.support.processes.http1 import Request
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_EJECTING = pytest.mark.parametrize("kind", ["haproxy", "envoy"])
_POST = Request("POST", "/v1/chat", body=b"{}")


def _pool(members: list[Replica], **passive: Any) -> dict[str, Any]:
    passive_check = {
        "consecutive_5xx": 3,
        "consecutive_connect_failures": 3,
        "error_rate": {"percent": "100%", "window": "1s", "min_requests": 1000},
        "ejection_time": "2s",
        **passive,
    }
    return pool_of(
        members,
        balance={"algorithm": "round_robin"},
        slow_start={"window": "500ms"},
        health={"passive": passive_check},
    )


@_EJECTING
def test_replica_that_fails_posts_is_ejected(kind: Kind) -> None:
    with (
        replicas("a", "b") as (a, b),
        running(kind, fleet_of(_pool([a, b], ejection_time="60s"))) as gateway,
    ):
        gateway.load(20, 2, _POST).assert_no_failure()
        b.forget()
        b.behave(status=500)
        eventually(lambda: gateway.post("/v1/chat").status in (200, 500) and b.requests == 3, pause=0)
        eventually(lambda: gateway.load(4, 1, _POST).by_replica == {"a": 4})  # Envoy updates its workers later
        failed = b.requests
        after = gateway.load(60, 4, _POST)
    after.assert_no_failure()
    assert (after.by_replica, b.requests) == ({"a": 60}, failed)


@_EJECTING
def test_ejection_ends(kind: Kind) -> None:
    with replicas("a", "b") as (a, b), running(kind, fleet_of(_pool([a, b]))) as gateway:
        b.behave(status=500)
        gateway.load(20, 1, _POST)
        b.behave(status=200)
        gateway.load(10, 1, _POST).assert_no_failure()
        eventually(lambda: gateway.load(10, 1, _POST).by_replica["b"] > 2, pause=0.3)


def test_envoy_never_ejects_both_of_two() -> None:
    """A client whose requests make every replica fail must not make the service unavailable to others."""
    with (
        replicas("a", "b") as (a, b),
        running("envoy", fleet_of(_pool([a, b], ejection_time="60s"))) as gateway,
    ):
        a.behave(status=500)
        b.behave(status=500)
        poisoned = gateway.load(40, 1, _POST)
        assert {response.replica for response in poisoned.responses[-10:]} & {"a", "b"}
        a.behave(status=200)
        b.behave(status=200)
        gateway.load(20, 1, _POST).assert_no_failure()


def test_status_400_and_429_do_not_count_as_failures(kind: Kind) -> None:
    with replicas("a", "b") as (a, b), running(kind, fleet_of(_pool([a, b]))) as gateway:
        for status in (400, 429):
            b.behave(status=status)
            gateway.load(30, 1, _POST)
        b.behave(status=200)
        counts = gateway.load(20, 1, _POST).by_replica
    assert counts.total() == 20
    assert 8 <= counts["b"] <= 12  # Envoy's turns are not strict while the weights of new replicas still grow


def test_replica_that_refuses_connections_is_ejected_and_returns(kind: Kind) -> None:
    """The log counts the first attempts, which are repeated on the other replica.

    No request tries the replica again until its ejection ends.
    """
    with (
        replicas("a", "b") as (a, b),
        running(kind, fleet_of(_pool([a, b], ejection_time="2s", max_ejection="100%"))) as gateway,
    ):
        b.refuse()
        load = gateway.load(60, 1, _POST, gap=0.03)  # Envoy's main thread ejects, a moment later than its worker counts
        load.assert_no_failure()
        tried = sum(line["retries"] for line in gateway.access_log(60))
        assert load.by_replica == {"a": 60}
        assert 1 <= tried <= 6 * (1 + load.seconds // 2)
        b.accept()
        eventually(lambda: gateway.load(10, 1, _POST).by_replica["b"] > 2, pause=0.3)


def test_nginx_reports_that_it_does_not_count_5xx() -> None:
    with replicas("a", "b") as (a, b), running("nginx", fleet_of(_pool([a, b]))) as gateway:
        b.behave(status=500)
        load = gateway.load(40, 1, _POST)
        assert "warning LB479" in gateway.messages
    assert load.statuses == {200: 20, 500: 20}


def test_haproxy_reports_that_it_may_eject_all_replicas() -> None:
    with replicas("a", "b") as pool:
        with running("haproxy", fleet_of(_pool(pool, max_ejection="50%"))) as gateway:
            assert "warning LB491" in gateway.messages
        with running("haproxy", fleet_of(_pool(pool, max_ejection="100%"))) as gateway:
            assert "warning LB491" not in gateway.messages
            assert "out at once" not in gateway.messages


def test_nginx_ejects_a_replica_after_the_configured_failures() -> None:
    """The other replica gets each request that failed; later requests do not try the replica."""
    for failures in (1, 4):
        with (
            replicas("a", "b") as (a, b),
            running(
                "nginx",
                fleet_of(
                    _pool([a, b], consecutive_connect_failures=failures, ejection_time="60s", max_ejection="100%")
                ),
            ) as gateway,
        ):
            b.refuse()
            load = gateway.load(40, 1, _POST)
            load.assert_no_failure()
            assert sum(line["retries"] for line in gateway.access_log(40)) == failures
            b.accept()
            assert gateway.load(20, 1, _POST).by_replica == {"a": 20}

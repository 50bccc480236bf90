"""A replica that fails what clients send is left out for a while, and the other of two goes on."""

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
    judged = {
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
        health={"passive": judged},
    )


@_EJECTING
def test_a_replica_that_fails_posts_is_ejected_and_the_other_goes_on(kind: Kind) -> None:
    with (
        replicas("a", "b") as (a, b),
        running(kind, fleet_of(_pool([a, b], ejection_time="60s"))) as gateway,
    ):
        gateway.load(20, 2, _POST).assert_no_failure()
        b.forget()
        b.behave(status=500)
        eventually(lambda: gateway.post("/v1/chat").status in (200, 500) and b.requests == 3, pause=0)
        eventually(lambda: gateway.load(4, 1, _POST).by_replica == {"a": 4})  # Envoy tells its threads a moment later
        failed = b.requests
        after = gateway.load(60, 4, _POST)
    after.assert_no_failure()
    assert (after.by_replica, b.requests) == ({"a": 60}, failed)


@_EJECTING
def test_an_ejected_replica_comes_back(kind: Kind) -> None:
    with replicas("a", "b") as (a, b), running(kind, fleet_of(_pool([a, b]))) as gateway:
        b.behave(status=500)
        gateway.load(20, 1, _POST)
        b.behave(status=200)
        gateway.load(10, 1, _POST).assert_no_failure()
        eventually(lambda: gateway.load(10, 1, _POST).by_replica["b"] > 2)


def test_envoy_never_ejects_both_of_two() -> None:
    """A client whose requests make every replica fail must not take the service from the others."""
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


def test_a_429_and_a_400_are_no_fault_of_the_replica(kind: Kind) -> None:
    with replicas("a", "b") as (a, b), running(kind, fleet_of(_pool([a, b]))) as gateway:
        for status in (400, 429):
            b.behave(status=status)
            gateway.load(30, 1, _POST)
        b.behave(status=200)
        counts = gateway.load(20, 1, _POST).by_replica
    assert counts.total() == 20
    assert 8 <= counts["b"] <= 12  # Envoy's turns are not strict while the weights of new replicas still grow


def test_a_replica_that_refuses_connections_is_left_out_and_comes_back(kind: Kind) -> None:
    """The first tries on it are repeated on the other, and the log counts them; then nobody tries any more, until the
    time of the ejection is over."""
    with (
        replicas("a", "b") as (a, b),
        running(kind, fleet_of(_pool([a, b], ejection_time="3s", max_ejection="100%"))) as gateway,
    ):
        b.refuse()
        load = gateway.load(60, 1, _POST)
        load.assert_no_failure()
        tried = sum(line["retries"] for line in gateway.access_log(60))
        assert load.by_replica == {"a": 60}
        assert 1 <= tried <= 6 * (1 + load.seconds // 3)
        b.accept()
        eventually(lambda: gateway.load(10, 1, _POST).by_replica["b"] > 2, pause=0.3)


def test_nginx_says_that_it_does_not_count_5xx() -> None:
    with replicas("a", "b") as (a, b), running("nginx", fleet_of(_pool([a, b]))) as gateway:
        b.behave(status=500)
        load = gateway.load(40, 1, _POST)
        assert "warning LB479" in gateway.messages
    assert load.statuses == {200: 20, 500: 20}


def test_haproxy_that_may_eject_both_says_so_where_that_was_not_asked_for() -> None:
    with replicas("a", "b") as pool:
        with running("haproxy", fleet_of(_pool(pool, max_ejection="50%"))) as gateway:
            assert "warning LB491" in gateway.messages
        with running("haproxy", fleet_of(_pool(pool, max_ejection="100%"))) as gateway:
            assert "warning LB491" not in gateway.messages
            assert "out at once" not in gateway.messages


def test_nginx_leaves_a_replica_out_after_as_many_failures_as_were_asked_for() -> None:
    """Each is a request that the other replica then got; later ones do not try it any more."""
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

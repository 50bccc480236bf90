"""Envoy takes a replica out by its error rate, also where its errors never stand in a row."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.checks import OFTEN
from tests.support.processes.client import Client
from tests.support.processes.fleet import fleet_of, pool_of, running
from tests.support.processes.http1 import Request
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_POST = Request("POST", "/v1/chat", body=b"{}")
_TWO_OF_THREE, _ONE_OF_THREE = (500, 500, 200), (500, 200, 200)


def _pool(members: list[Replica], rate: dict[str, Any] | None = None, **passive: Any) -> dict[str, Any]:
    error_rate = {"percent": "50%", "window": "1s", "min_requests": 20, **(rate or {})}
    judged = {"error_rate": error_rate, "ejection_time": "3s", "consecutive_5xx": 1000, **passive}
    return pool_of(
        members,
        balance={"algorithm": "round_robin"},
        slow_start={"window": "300ms"},
        health={"passive": judged},
    )


def _press(client: Client, seconds: float) -> None:
    """Some hundred requests in every window of a second."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        client.load(60, 2, _POST, gap=0.01)


def test_a_replica_above_the_rate_is_ejected_and_comes_back() -> None:
    with replicas("a", "b") as (a, b), running("envoy", fleet_of(_pool([a, b]))) as gateway:
        b.behave(statuses=_TWO_OF_THREE)
        eventually(lambda: gateway.load(60, 2, _POST).by_replica == {"a": 60})
        failed, last = b.requests, b.seen[-1].at
        b.behave(statuses=())
        eventually(lambda: gateway.load(20, 2, _POST).by_replica["b"] > 5, pause=0.1)
        assert b.seen[failed].at - last > 1.5


@pytest.mark.parametrize(
    ("statuses", "rate"),
    [(_ONE_OF_THREE, {}), (_TWO_OF_THREE, {"min_requests": 100_000}), (_TWO_OF_THREE, {"percent": "80%"})],
    ids=["below the rate", "too few requests", "a higher limit"],
)
def test_a_replica_that_is_not_above_the_rate_stays(statuses: tuple[int, ...], rate: dict[str, Any]) -> None:
    with replicas("a", "b") as (a, b), running("envoy", fleet_of(_pool([a, b], rate))) as gateway:
        b.behave(statuses=statuses)
        _press(gateway, 3.5)
        b.forget()
        gateway.load(40, 2, _POST)
        assert b.requests == 20


def test_no_more_than_max_ejection_are_out_at_once() -> None:
    with (
        replicas("a", "b", "c", "d") as (a, b, c, d),
        running("envoy", fleet_of(_pool([a, b, c, d], max_ejection="25%", ejection_time="60s"))) as gateway,
    ):
        for replica in (b, c, d):
            replica.behave(statuses=_TWO_OF_THREE)
        eventually(lambda: len({item.replica for item in gateway.load(80, 2, _POST).responses}) == 3)
        _press(gateway, 2)
        for replica in (b, c, d):
            replica.behave(statuses=())
        assert len(gateway.load(80, 2, _POST).by_replica) == 3


def test_a_passing_check_does_not_bring_an_ejected_replica_back() -> None:
    """`/health` says yes, everything else fails: Envoy would otherwise bring the replica back at the next check."""
    with replicas("a", "b") as (a, b):
        pool = _pool([a, b], consecutive_5xx=3, ejection_time="60s")
        pool["health"]["active"] = {**OFTEN, "http": {"path": "/health"}}
        with running("envoy", fleet_of(pool)) as gateway:
            eventually(lambda: set(gateway.load(10).by_replica) == {"a", "b"})
            b.behave(status=500)
            eventually(lambda: gateway.load(20, 2, _POST).by_replica == {"a": 20})
            served, checks = b.requests, b.checks
            eventually(lambda: not gateway.load(20, 2, _POST).failures and b.checks > checks + 2)
            assert b.requests == served


@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
def test_a_proxy_that_knows_no_rate_says_so(kind: Kind) -> None:
    with replicas("a", "b") as (a, b), running(kind, fleet_of(_pool([a, b]))) as gateway:
        b.behave(statuses=_TWO_OF_THREE)
        _press(gateway, 1)
        assert "warning LB481" in gateway.messages
        b.forget()
        gateway.load(40, 2, _POST)
        assert b.requests == 20

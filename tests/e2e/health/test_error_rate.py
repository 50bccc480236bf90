"""Envoy takes a replica out by its error rate, even if its errors are never consecutive."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
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
    passive_check = {"error_rate": error_rate, "ejection_time": "3s", "consecutive_5xx": 1000, **passive}
    return pool_of(
        members,
        balance={"algorithm": "round_robin"},
        slow_start={"window": "300ms"},
        health={"passive": passive_check},
    )


def _send_errors(clients: Sequence[tuple[Client, str]], seconds: float) -> None:
    """Send several hundred requests per second to each client and path, so that each window of a second has enough."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        loads = [client.send_load(40, 2, Request("POST", path, body=b"{}"), gap=0.02) for client, path in clients]
        for load in loads:
            load.result(60)


def test_replica_above_the_error_rate_is_ejected_and_returns() -> None:
    with replicas("a", "b") as (a, b), running("envoy", fleet_of(_pool([a, b]))) as gateway:
        b.behave(statuses=_TWO_OF_THREE)
        eventually(lambda: gateway.load(60, 2, _POST).by_replica == {"a": 60}, pause=0.2)
        failed, last = b.requests, b.seen[-1].at
        b.behave(statuses=())
        eventually(lambda: gateway.load(20, 2, _POST).by_replica["b"] > 5, pause=0.3)
        assert b.seen[failed].at - last > 1.5


def test_replica_at_or_below_the_limits_keeps_its_share() -> None:
    cases: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
        "below-the-rate": (_ONE_OF_THREE, {}),
        "too-few-requests": (_TWO_OF_THREE, {"min_requests": 100_000}),
        "higher-limit": (_TWO_OF_THREE, {"percent": "80%"}),
    }
    with ExitStack() as stack:
        members = {name: stack.enter_context(replicas("a", "b")) for name in cases}
        pools = {name: _pool(members[name], rate) for name, (_, rate) in cases.items()}
        routes = {name: {"match": {"path_prefix": f"/{name}"}, "pool": name} for name in cases}
        fleet = {**fleet_of(pools["higher-limit"]), "routes": routes, "pools": pools}
        gateway = stack.enter_context(running("envoy", fleet))
        for name, (statuses, _) in cases.items():
            members[name][1].behave(statuses=statuses)
        _send_errors([(gateway, f"/{name}") for name in cases], 2.5)
        requests = {}
        for name in cases:
            members[name][1].forget()
            gateway.load(40, 2, Request("POST", f"/{name}", body=b"{}"))
            requests[name] = members[name][1].requests
    assert requests == dict.fromkeys(cases, 20)


def test_max_ejection_limits_the_ejected_replicas() -> None:
    with (
        replicas("a", "b", "c", "d") as (a, b, c, d),
        running("envoy", fleet_of(_pool([a, b, c, d], max_ejection="25%", ejection_time="60s"))) as gateway,
    ):
        for replica in (b, c, d):
            replica.behave(statuses=_TWO_OF_THREE)
        eventually(lambda: len({item.replica for item in gateway.load(80, 2, _POST).responses}) == 3, pause=0.2)
        _send_errors([(gateway, "/v1/chat")], 2)
        for replica in (b, c, d):
            replica.behave(statuses=())
        assert len(gateway.load(40, 2, _POST).by_replica) == 3


def test_passing_check_does_not_end_an_ejection() -> None:
    """Everything except `/health` fails. By default, Envoy would restore the replica at the next check."""
    with replicas("a", "b") as (a, b):
        pool = _pool([a, b], consecutive_5xx=3, ejection_time="60s")
        pool["health"]["active"] = {**OFTEN, "http": {"path": "/health"}}
        with running("envoy", fleet_of(pool)) as gateway:
            eventually(lambda: set(gateway.load(10).by_replica) == {"a", "b"}, pause=0.2)
            b.behave(status=500)
            eventually(lambda: gateway.load(20, 2, _POST).by_replica == {"a": 20}, pause=0.2)
            served, checks = b.requests, b.checks
            eventually(lambda: b.checks > checks + 2)
            gateway.load(20, 2, _POST).assert_no_failure()
            assert b.requests == served


@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
def test_proxy_without_error_rates_reports_it(kind: Kind) -> None:
    with replicas("a", "b") as (a, b), running(kind, fleet_of(_pool([a, b]))) as gateway:
        b.behave(statuses=_TWO_OF_THREE)
        gateway.load(60, 2, _POST)
        assert "warning LB481" in gateway.messages
        b.forget()
        gateway.load(40, 2, _POST)
        assert b.requests == 20

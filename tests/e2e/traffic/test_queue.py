"""Requests that wait for a busy replica wait no longer than the pool's queue timeout."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import Gateway, fleet_of, pool_of, running
from tests.support.processes.haproxy_queue import waiting, with_runtime_api
from tests.support.processes.http1 import Response
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually


def _fleet(replica: Replica, queue: str, route: dict[str, Any] | None = None) -> Fleet:
    """Return a fleet whose replica serves one request at a time.

    `/first` is a separate route without the keys in `route`.
    """
    breaker = {"per_replica": {"max_requests": 1}, "max_requests": 100, "max_pending_requests": 100}
    first = {"first": {"match": {"path": "/first"}, "pool": "pool"}}
    pool = pool_of([replica], circuit_breaker=breaker, timeouts={"queue": queue})
    return fleet_of(pool, route=route, routes=first)


def _behind_one(gateway: Gateway, replica: Replica, ended: int, socket: str = "") -> list[Response]:
    """Return the response to a request that keeps the replica busy, and to two that came later.

    It is busy until `ended` of them have their responses; with `socket` until both wait in HAProxy.
    """
    replica.held = True
    first = gateway.send("GET", "/first", timeout=100)
    eventually(lambda: replica.in_flight == 1)
    later = [gateway.send("GET", "/", timeout=100) for _ in range(2)]
    eventually(lambda: sum(each.done() for each in later) == ended)
    eventually(lambda: not socket or waiting(socket) == 2)
    replica.held = False
    return [each.result(100) for each in (first, *later)]


def test_haproxy_ends_a_wait_at_the_queue_timeout() -> None:
    with replicas("a") as (a,), running("haproxy", _fleet(a, "400ms")) as gateway:
        first, *later = _behind_one(gateway, a, 2)
    assert (first.status, a.max_in_flight, a.requests) == (200, 1, 1)
    for answer in later:
        assert (answer.status, answer.seconds > 0.35) == (503, True)
        assert (answer.header("content-type"), answer.json["error"]["type"]) == ("application/json", "unavailable")
        assert answer.header_list("retry-after") == ["1"]


def test_haproxy_serves_queued_requests_in_order(tmp_path: Path) -> None:
    socket = str(tmp_path / "admin.sock")
    with replicas("a") as (a,), running("haproxy", with_runtime_api(_fleet(a, "100s"), socket)) as gateway:
        answers = _behind_one(gateway, a, 0, socket)
    assert [answer.status for answer in answers] == [200] * 3
    assert a.max_in_flight == 1


def test_haproxy_logs_the_queue_time(tmp_path: Path) -> None:
    socket = str(tmp_path / "admin.sock")
    with replicas("a") as (a,), running("haproxy", with_runtime_api(_fleet(a, "100s"), socket)) as gateway:
        a.held = True
        first = gateway.send("GET", "/first", timeout=100)
        eventually(lambda: a.in_flight == 1)
        second = gateway.send("GET", "/second", timeout=100)
        eventually(lambda: waiting(socket) == 1)
        time.sleep(1)
        a.held = False
        assert all(each.result(100).ok for each in (first, second))
        queued = {line["path"]: line["t_queue"] for line in gateway.access_log(2)}
    assert 1000 <= queued["/second"] <= second.result().seconds * 1000 + 1
    assert queued["/first"] < first.result().seconds * 1000 - 1000


@pytest.mark.parametrize("kind", ["nginx", "envoy"])
def test_proxy_without_queue_timeout_reports_it(kind: Kind) -> None:
    refused = {"nginx": 2, "envoy": 0}[kind]
    with replicas("a") as (a,), running(kind, _fleet(a, "400ms")) as gateway:
        answers = _behind_one(gateway, a, refused)
        assert "warning LB471" in gateway.messages
    assert a.max_in_flight == 1
    assert [answer.status for answer in answers] == [200, *([503, 503] if refused else [200, 200])]


def test_request_timeout_bounds_the_wait_on_envoy() -> None:
    with replicas("a") as (a,), running("envoy", _fleet(a, "400ms", {"timeouts": {"request": "2s"}})) as gateway:
        answers = _behind_one(gateway, a, 2)
    assert [answer.status for answer in answers] == [200, 504, 504]

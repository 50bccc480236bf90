"""Active checks eject a replica before a client reaches it, and readmit it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.checks import OFTEN
from tests.support.processes.client import Client
from tests.support.processes.fleet import Gateway, fleet_of, pool_of, running
from tests.support.processes.grpc_replica import grpc_replicas
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_OFTEN = {**OFTEN, "healthy_threshold": 2}
_PAUSE = 0.2
"""Seconds between polls of the replicas that answer."""
_CHECKING = pytest.mark.parametrize("kind", ["haproxy", "envoy"])


def _pool(members: list[Replica], **check: Any) -> dict[str, Any]:
    return pool_of(
        members,
        balance={"algorithm": "round_robin"},
        slow_start={"window": "500ms"},
        health={"active": {**_OFTEN, **check}},
    )


def _await_serving(client: Client, *names: str) -> None:
    """Wait until exactly these replicas answer."""
    eventually(lambda: set(client.load(12, 2).by_replica) == set(names), pause=_PAUSE)


@_CHECKING
def test_unready_replica_gets_no_requests_until_it_is_ready(kind: Kind) -> None:
    with replicas("a", "b") as (a, b), running(kind, fleet_of(_pool([a, b], http={"path": "/health"}))) as gateway:
        _await_serving(gateway, "a", "b")
        b.behave(health=503)
        _await_serving(gateway, "a")
        served = b.requests
        gateway.load(60, 4).assert_no_failure()
        assert b.requests == served
        b.behave(health=200)
        _await_serving(gateway, "a", "b")


@_CHECKING
def test_pool_without_ready_replica_answers_503(kind: Kind) -> None:
    with replicas("a", "b") as (a, b), running(kind, fleet_of(_pool([a, b], http={"path": "/health"}))) as gateway:
        a.behave(health=500)
        b.behave(health=500)
        eventually(lambda: gateway.load(6).statuses == {503: 6}, pause=_PAUSE)
        served = a.requests + b.requests
        answer = gateway.post()
        assert a.requests + b.requests == served
    assert (answer.status, answer.header("content-type"), answer.replica) == (503, "application/json", None)
    assert answer.json["error"] == {
        "message": "no replica available",
        "type": "unavailable",
        "param": None,
        "code": "unavailable",
    }


@_CHECKING
def test_tcp_check_finds_a_replica_that_refuses_connections(kind: Kind) -> None:
    """There are no retries and no ejections here: without the check, every second request would fail."""
    never = {"consecutive_connect_failures": 1000, "consecutive_5xx": 1000}
    with replicas("a", "b") as (a, b):
        checked = _pool([a, b], tcp={})
        checked["health"]["passive"] = never
        with running(kind, fleet_of(checked, route={"retry": {"attempts": 0}})) as gateway:
            _await_serving(gateway, "a", "b")
            b.refuse()
            eventually(lambda: not gateway.load(12, 2).failures, pause=0.3)
            gateway.load(40, 2).assert_no_failure()
            b.accept()
            _await_serving(gateway, "a", "b")


@_CHECKING
def test_check_uses_its_own_port(kind: Kind) -> None:
    with replicas("a", "probe") as (a, probe):
        pool = _pool([a], http={"path": "/health"}, port=probe.port)
        with running(kind, fleet_of(pool)) as gateway:
            eventually(lambda: probe.checks > 1)
            eventually(lambda: gateway.get().ok)
            probe.behave(health=503)
            eventually(lambda: gateway.get().status == 503)
            probe.behave(health=200)
            eventually(lambda: gateway.get().ok)
    assert (a.checks, probe.requests) == (0, 0)


@_CHECKING
def test_check_accepts_the_configured_statuses(kind: Kind) -> None:
    with replicas("a", "b", "c") as (a, b, c):
        a.behave(health=204)
        c.behave(health=299)
        pool = _pool([a, b, c], http={"path": "/health", "statuses": [204, 299]})
        with running(kind, fleet_of(pool)) as gateway:
            _await_serving(gateway, "a", "c")
            b.behave(health=299)
            _await_serving(gateway, "a", "b", "c")


@_CHECKING
def test_check_reads_the_body(kind: Kind) -> None:
    with replicas("a", "b") as (a, b):
        a.behave(health_body='{"state": "model ready"}')
        b.behave(health_body='{"state": "loading"}')
        pool = _pool([a, b], http={"path": "/health", "body_contains": '"model ready"'})
        with running(kind, fleet_of(pool)) as gateway:
            _await_serving(gateway, "a")
            b.behave(health_body='{"state": "model ready"}')
            _await_serving(gateway, "a", "b")


@_CHECKING
def test_check_sends_the_configured_host(kind: Kind) -> None:
    pool = {"http": {"path": "/health", "host": "models.internal"}}
    with replicas("a") as (a,), running(kind, fleet_of(_pool([a], **pool))):
        eventually(lambda: a.checks > 1)
        assert {(seen.method, seen.path, seen.header("host")) for seen in a.checked} == {
            ("GET", "/health", "models.internal")
        }


@_CHECKING
def test_grpc_replica_is_checked_by_http_on_another_port(kind: Kind) -> None:
    """Like Triton's replicas: calls on one port, `/v2/health/ready` by HTTP/1.1 on another."""
    with grpc_replicas("a") as (a,), replicas("probe") as (probe,):
        health = {"active": {**_OFTEN, "http": {"path": "/health"}, "port": probe.port}}
        with running(kind, fleet_of(pool_of([a], protocol="grpc", health=health))) as gateway:
            eventually(lambda: gateway.grpc("/s.S/Echo").ok, pause=_PAUSE)
            probe.behave(health=503)
            eventually(lambda: gateway.grpc("/s.S/Echo").code == "UNAVAILABLE", pause=_PAUSE)
            probe.behave(health=200)
            eventually(lambda: gateway.grpc("/s.S/Echo").ok, pause=_PAUSE)


@_CHECKING
def test_grpc_check_follows_the_health_service(kind: Kind) -> None:
    with grpc_replicas("a", "b") as (a, b):
        pool = pool_of([a, b], protocol="grpc", balance={"algorithm": "round_robin"}, health=_grpc_health(""))
        with running(kind, fleet_of(pool)) as gateway:
            _await_answers(gateway, "a", "b")
            b.behave(serving=False)
            _await_answers(gateway, "a")
            b.behave(serving=True)
            _await_answers(gateway, "a", "b")
            a.refuse()
            _await_answers(gateway, "b")
    assert set(b.asked) == {_health_request("")}


@_CHECKING
def test_grpc_check_asks_for_the_configured_service(kind: Kind) -> None:
    """The length of the second name does not fit into one byte of a protobuf message."""
    services = {"a": "rerank.v1.Reranker", "b": "a" * 128}
    with grpc_replicas(*services) as members:
        pools = {
            item.name: pool_of([item], protocol="grpc", health=_grpc_health(services[item.name])) for item in members
        }
        routes = {name: {"match": {"path_prefix": f"/{name}"}, "pool": name} for name in pools}
        with running(kind, {**fleet_of(pools["a"]), "routes": routes, "pools": pools}) as gateway:
            eventually(lambda: [gateway.grpc(f"/{name}/Echo").replica for name in services] == list(services))
            eventually(lambda: all(item.asked for item in members))
    assert {item.name: set(item.asked) for item in members} == {
        name: {_health_request(service)} for name, service in services.items()
    }


def _grpc_health(service: str) -> dict[str, Any]:
    return {"active": {**_OFTEN, "grpc": {"service": service}}}


def _health_request(service: str) -> bytes:
    """Return the bytes of a `HealthCheckRequest` for this service."""
    size = len(service)
    length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    return b"\x0a" + length + service.encode() if service else b""


def _await_answers(gateway: Gateway, *names: str) -> None:
    """Wait until exactly these replicas answer calls."""
    eventually(lambda: {reply.replica for reply in gateway.grpc_load("/s.S/Echo", 4, 2)} == set(names), pause=_PAUSE)


def test_nginx_reports_checks_that_it_cannot_do() -> None:
    checks = {
        "status": ({"http": {"path": "/health"}}, "LB475"),
        "body": ({"http": {"path": "/health", "body_contains": "ok"}}, "LB476"),
        "service": ({"grpc": {}}, "LB477"),
        "connection": ({"tcp": {}}, "LB478"),
    }
    with grpc_replicas("a") as (a,):
        pools = {name: pool_of([a], protocol="grpc", health={"active": check}) for name, (check, _) in checks.items()}
        routes = {name: {"match": {"path_prefix": f"/{name}"}, "pool": name} for name in pools}
        with running("nginx", {**fleet_of([a]), "routes": routes, "pools": pools}) as gateway:
            for name, (_, code) in checks.items():
                assert f"warning {code} pools.{name}." in gateway.messages

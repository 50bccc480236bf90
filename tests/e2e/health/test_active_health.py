"""Active checks take a replica out before a client meets it, and bring it back."""

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
_CHECKING = pytest.mark.parametrize("kind", ["haproxy", "envoy"])


def _pool(members: list[Replica], **check: Any) -> dict[str, Any]:
    return pool_of(
        members,
        balance={"algorithm": "round_robin"},
        slow_start={"window": "500ms"},
        health={"active": {**_OFTEN, **check}},
    )


def _serve(client: Client, *names: str) -> bool:
    """Whether exactly these answer now."""
    return set(client.load(12, 2).by_replica) == set(names)


@_CHECKING
def test_a_replica_that_is_not_ready_gets_nothing_until_it_is(kind: Kind) -> None:
    with replicas("a", "b") as (a, b), running(kind, fleet_of(_pool([a, b], http={"path": "/health"}))) as gateway:
        eventually(lambda: _serve(gateway, "a", "b"))
        b.behave(health=503)
        eventually(lambda: _serve(gateway, "a"))
        served = b.requests
        gateway.load(60, 4).assert_no_failure()
        assert b.requests == served
        b.behave(health=200)
        eventually(lambda: _serve(gateway, "a", "b"))


@_CHECKING
def test_no_ready_replica_is_a_503_and_not_a_try(kind: Kind) -> None:
    with replicas("a", "b") as (a, b), running(kind, fleet_of(_pool([a, b], http={"path": "/health"}))) as gateway:
        a.behave(health=500)
        b.behave(health=500)
        eventually(lambda: gateway.get().status == 503)
        eventually(lambda: all(each.status == 503 for each in gateway.load(6).responses))
        served = a.requests + b.requests
        answer = gateway.post()
        assert a.requests + b.requests == served
    assert (answer.status, answer.header("content-type"), answer.replica) == (503, "application/json", None)
    assert answer.json["error"] == {"message": "no replica available", "type": "unavailable"}


@_CHECKING
def test_a_tcp_check_finds_a_replica_that_refuses(kind: Kind) -> None:
    """No retries and no ejection here: without the check every second request would fail."""
    never = {"consecutive_connect_failures": 1000, "consecutive_5xx": 1000}
    with replicas("a", "b") as (a, b):
        checked = _pool([a, b], tcp={})
        checked["health"]["passive"] = never
        with running(kind, fleet_of(checked, route={"retry": {"attempts": 0}})) as gateway:
            eventually(lambda: _serve(gateway, "a", "b"))
            b.refuse()
            eventually(lambda: not gateway.load(12, 2).failures, pause=0.3)
            gateway.load(40, 2).assert_no_failure()
            b.accept()
            eventually(lambda: _serve(gateway, "a", "b"))


@_CHECKING
def test_a_check_goes_to_its_own_port(kind: Kind) -> None:
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
def test_a_check_takes_the_statuses_that_were_named(kind: Kind) -> None:
    with replicas("a", "b", "c") as (a, b, c):
        a.behave(health=204)
        c.behave(health=299)
        pool = _pool([a, b, c], http={"path": "/health", "statuses": [204, 299]})
        with running(kind, fleet_of(pool)) as gateway:
            eventually(lambda: _serve(gateway, "a", "c"))
            b.behave(health=299)
            eventually(lambda: _serve(gateway, "a", "b", "c"))


@_CHECKING
def test_a_check_reads_the_body(kind: Kind) -> None:
    with replicas("a", "b") as (a, b):
        a.behave(health_body='{"state": "model ready"}')
        b.behave(health_body='{"state": "loading"}')
        pool = _pool([a, b], http={"path": "/health", "body_contains": '"model ready"'})
        with running(kind, fleet_of(pool)) as gateway:
            eventually(lambda: _serve(gateway, "a"))
            b.behave(health_body='{"state": "model ready"}')
            eventually(lambda: _serve(gateway, "a", "b"))


@_CHECKING
def test_a_check_names_the_host_that_was_named(kind: Kind) -> None:
    pool = {"http": {"path": "/health", "host": "models.internal"}}
    with replicas("a") as (a,), running(kind, fleet_of(_pool([a], **pool))):
        eventually(lambda: a.checks > 1)
        assert {(seen.method, seen.path, seen.header("host")) for seen in a.checked} == {
            ("GET", "/health", "models.internal")
        }


@_CHECKING
def test_a_grpc_replica_is_checked_by_http_on_another_port(kind: Kind) -> None:
    """As Triton's are: calls on one port, `/v2/health/ready` by HTTP/1.1 on another."""
    with grpc_replicas("a") as (a,), replicas("probe") as (probe,):
        health = {"active": {**_OFTEN, "http": {"path": "/health"}, "port": probe.port}}
        with running(kind, fleet_of(pool_of([a], protocol="grpc", health=health))) as gateway:
            eventually(lambda: gateway.grpc("/s.S/Echo").ok)
            probe.behave(health=503)
            eventually(lambda: gateway.grpc("/s.S/Echo").code == "UNAVAILABLE")
            probe.behave(health=200)
            eventually(lambda: gateway.grpc("/s.S/Echo").ok)


@_CHECKING
@pytest.mark.parametrize("service", ["", "rerank.v1.Reranker", "a" * 128], ids=["", "named", "long"])
def test_a_check_asks_the_health_service_of_grpc(kind: Kind, service: str) -> None:
    with grpc_replicas("a", "b") as (a, b):
        health = {"active": {**_OFTEN, "grpc": {"service": service}}}
        pool = pool_of([a, b], protocol="grpc", balance={"algorithm": "round_robin"}, health=health)
        with running(kind, fleet_of(pool)) as gateway:
            eventually(lambda: _answer(gateway) == {"a", "b"})
            b.behave(serving=False)
            eventually(lambda: _answer(gateway) == {"a"})
            b.behave(serving=True)
            eventually(lambda: _answer(gateway) == {"a", "b"})
            a.refuse()
            eventually(lambda: _answer(gateway) == {"b"})
    length = bytes([len(service)]) if len(service) < 128 else bytes([len(service) & 127 | 128, len(service) >> 7])
    assert set(b.asked) == {b"\x0a" + length + service.encode() if service else b""}


def _answer(gateway: Gateway) -> set[str | None]:
    return {each.replica for each in gateway.grpc_load("/s.S/Echo", 8, 2)}


@pytest.mark.parametrize(
    ("kind", "check", "code"),
    [
        ("nginx", {"http": {"path": "/health"}}, "LB475"),
        ("nginx", {"http": {"path": "/health", "body_contains": "ok"}}, "LB476"),
        ("nginx", {"grpc": {}}, "LB477"),
        ("nginx", {"tcp": {}}, "LB478"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_proxy_that_cannot_check_says_so(kind: Kind, check: dict[str, Any], code: str) -> None:
    with grpc_replicas("a") as (a,):
        pool = pool_of([a], protocol="grpc", health={"active": check})
        with running(kind, fleet_of(pool)) as gateway:
            assert f"warning {code}" in gateway.messages

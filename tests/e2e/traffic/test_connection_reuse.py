"""Connections to replicas serve many requests, up to `max_requests`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.support.processes.binaries import Binary, Kind
from tests.support.processes.fleet import fleet_of, pool_of, running
from tests.support.processes.grpc_replica import grpc_replicas
from tests.support.processes.http1 import Request
from tests.support.processes.replicas import replicas

_POST = Request("POST", "/v1/chat", body=b"{}")


@pytest.mark.parametrize("kind", ["nginx", "envoy"])
def test_connections_to_replicas_serve_many_requests(kind: Kind) -> None:
    """Clients open a connection for each request; connections to the replicas stay open."""
    with replicas("a", "b") as pool, running(kind, fleet_of(pool)) as gateway:
        load = gateway.load(120, 4, _POST, keep_alive=False)
    load.assert_no_failure()
    assert load.connections == 120
    assert sum(replica.connections for replica in pool) <= 20


@pytest.mark.parametrize("kind", ["nginx", "envoy"])
def test_connection_carries_at_most_max_requests(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, fleet_of(pool_of([a], connections={"max_requests": 10}))) as gateway:
        gateway.load(60, 2, _POST).assert_no_failure()
        carried = Counter(seen.connection for seen in a.seen)
    assert max(carried.values()) == 10
    assert 6 <= a.connections <= 20


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
def test_http2_connection_carries_at_most_max_requests(kind: Kind) -> None:
    with grpc_replicas("a") as (a,):
        pool = pool_of([a], protocol="grpc", connections={"max_requests": 10})
        with running(kind, fleet_of(pool)) as gateway:
            replies = gateway.grpc_load("/s.S/Echo", 25, 1)
        carried = Counter(call.peer for call in a.seen)
    assert {reply.code for reply in replies} == {"OK"}
    assert max(carried.values()) == 10


@pytest.mark.parametrize("kind", ["nginx", "envoy"])
def test_idle_connection_is_closed_in_time(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, fleet_of(pool_of([a], connections={"idle": "500ms"}))) as gateway:
        gateway.load(2, 1, _POST, gap=1.5, jitter=0.0).assert_no_failure()
    assert a.connections == 2


def test_haproxy_opens_a_connection_for_each_http1_request() -> None:
    """HAProxy cannot close idle connections before a server does, and a POST on a connection that was just closed would
    fail."""
    with replicas("a") as (a,), running("haproxy", fleet_of([a])) as gateway:
        gateway.load(50, 2, _POST).assert_no_failure()
    assert a.connections == 50


_TRITON = {"sources": [{"kind": "triton", "url": "http://{host}:{port}/metrics"}]}


@pytest.mark.parametrize("keys", [{"connections": {"idle": "unlimited"}}, {"telemetry": _TRITON}])
@pytest.mark.parametrize("name", ["haproxy", "haproxy-2.8"])
def test_haproxy_keeps_connections_if_the_server_does(name: Binary, keys: dict[str, Any]) -> None:
    with replicas("a") as (a,), running(name, fleet_of(pool_of([a], **keys))) as gateway:
        gateway.load(50, 2, _POST).assert_no_failure()
    assert a.connections <= 4


@pytest.mark.parametrize(
    "keys",
    [
        {"telemetry": _TRITON, "connections": {"idle": "4s"}},
        {"connections": {"idle": "unlimited", "max_requests": 10}},
        {"connections": {"idle": "unlimited"}, "circuit_breaker": {"per_replica": {"max_connections": 8}}},
    ],
)
def test_haproxy_keeps_no_limited_connection(keys: dict[str, Any]) -> None:
    with replicas("a") as (a,), running("haproxy", fleet_of(pool_of([a], **keys))) as gateway:
        gateway.load(50, 2, _POST).assert_no_failure()
    assert a.connections == 50


def test_connections_stay_open_without_a_limit(kind: Kind) -> None:
    pool_keys = {"connections": {"idle": "unlimited"}}
    with replicas("a") as (a,), running(kind, fleet_of(pool_of([a], **pool_keys))) as gateway:
        gateway.load(40, 2, _POST).assert_no_failure()
    assert a.connections <= 4

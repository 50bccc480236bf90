"""Limits of concurrent requests: requests beyond them get a 429 until another request ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.processes.at_once import at_once
from tests.support.processes.binaries import Kind
from tests.support.processes.client import Client
from tests.support.processes.fleet import Gateway, bind, fleet_of, running
from tests.support.processes.http1 import Request, Response
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_CAN = pytest.mark.parametrize("kind", ["nginx", "haproxy"])
_STREAM = "/sse?n=600&gap=0.1"


@contextmanager
def _limited(kind: Kind, *limits: dict[str, Any], **sections: Any) -> Iterator[tuple[Gateway, Replica]]:
    route = {"rate_limit": list(limits), **sections.pop("route", {})}
    files = {"keys": "sk-a: acme\nsk-g: globex\n"}
    with replicas("a") as (a,), running(kind, fleet_of([a], route=route, **sections), files=files) as gateway:
        yield gateway, a


def _statuses(answers: list[Response]) -> Counter[int]:
    return Counter(answer.status for answer in answers)


@_CAN
def test_requests_beyond_the_limit_are_refused_at_once(kind: Kind) -> None:
    with _limited(kind, {"by": "all", "concurrent": 4}) as (gateway, a):
        for number in (1, 2):
            answers = at_once([(gateway, Request())] * 12, [a], 8)
            gateway.access_log(12 * number)  # a request counts until it is logged
            assert _statuses(answers) == {200: 4, 429: 8}
            for refused in (answer for answer in answers if not answer.ok):
                assert (refused.header("content-type"), refused.json["error"]["type"]) == (
                    "application/json",
                    "rate_limited",
                )
                assert int(refused.header("retry-after") or 0) >= 1
    assert a.max_in_flight == 4


@_CAN
def test_consecutive_requests_are_unlimited(kind: Kind) -> None:
    """Connections stay open: only requests count."""
    with _limited(kind, {"by": "all", "concurrent": 4}) as (gateway, _):
        load = gateway.load(60, concurrency=4)
    load.assert_no_failure()


@_CAN
def test_each_client_header_and_tenant_has_its_own_limit(kind: Kind) -> None:
    ways: list[tuple[Any, dict[str, Any]]] = [
        ("client_ip", {}),
        ({"header": "x-user"}, {}),
        ("tenant", {"auth": {"api_keys": {"file": "keys", "header": "x-key"}}}),
    ]
    for by, keys in ways:
        with _limited(kind, {"by": by, "concurrent": 2}, route=keys) as (gateway, a):
            senders = [
                (Client(gateway.port, source=source), Request(headers=(("x-user", user), ("x-key", f"sk-{user}"))))
                for source, user in (("127.0.0.2", "a"), ("127.0.0.3", "g"))
                for _ in range(5)
            ]
            answers = at_once(senders, [a], 6)
            assert [_statuses(each) for each in (answers[:5], answers[5:])] == [{200: 2, 429: 3}] * 2, by


@_CAN
def test_requests_without_the_header_share_one_limit(kind: Kind) -> None:
    with _limited(kind, {"by": {"header": "x-user"}, "concurrent": 2}) as (gateway, a):
        assert _statuses(at_once([(gateway, Request())] * 6, [a], 4)) == {200: 2, 429: 4}


@_CAN
def test_stream_counts_until_it_ends_or_is_cancelled(kind: Kind) -> None:
    with _limited(kind, {"by": "all", "concurrent": 2}) as (gateway, a):
        streams = [gateway.send("GET", _STREAM) for _ in range(2)]
        eventually(lambda: a.in_flight == 2)
        assert gateway.get().status == 429
        streams[0].cancel()
        eventually(lambda: gateway.get().status == 200)
        streams[1].cancel()
        eventually(lambda: gateway.load(2, concurrency=2).statuses == {200: 2})


@_CAN
def test_rate_and_concurrent_limit_both_hold(kind: Kind) -> None:
    limits = ({"by": "all", "rate": "5/m"}, {"by": "all", "concurrent": 2})
    with _limited(kind, *limits) as (gateway, a):
        assert _statuses(at_once([(gateway, Request())] * 3, [a], 1)) == {200: 2, 429: 1}
        statuses = [gateway.get().status for _ in range(6)]
    assert statuses == sorted(statuses)
    assert 2 <= statuses.count(200) <= 3  # nginx counts the request that was rejected for the other reason


@_CAN
def test_limit_is_divided_among_proxies(kind: Kind) -> None:
    proxies = {"edge": {"kind": kind, "instances": 2}}
    with _limited(kind, {"by": "all", "concurrent": 7}, proxies=proxies) as (gateway, a):
        assert _statuses(at_once([(gateway, Request())] * 12, [a], 8)) == {200: 4, 429: 8}


@_CAN
def test_limit_applies_to_its_route_on_all_listeners(kind: Kind) -> None:
    more = {
        "routes": {"free": {"match": {"path_prefix": "/free"}, "pool": "pool"}},
        "listeners": {"b": {"bind": bind()}},
    }
    with _limited(kind, {"by": "all", "concurrent": 1}, **more) as (gateway, a):
        stream = gateway.send("GET", _STREAM)
        eventually(lambda: a.in_flight == 1)
        assert [gateway.get().status, gateway.connect("b").get().status, gateway.get("/free").status] == [429, 429, 200]
        stream.cancel()


@pytest.mark.parametrize("by", ["all", "client_ip"])
def test_envoy_closes_a_route_with_a_concurrent_limit(by: str) -> None:
    free = {"match": {"path_prefix": "/free"}, "pool": "pool"}
    with _limited("envoy", {"by": by, "concurrent": 4}, routes={"free": free}) as (gateway, a):
        answer = gateway.get()
        assert gateway.get("/free").ok
        assert a.requests == 1
    assert (answer.status, answer.header("content-type")) == (503, "application/json")
    assert answer.json["error"]["type"] == "closed"
    assert "LB442 routes.everything.rate_limit" in gateway.messages

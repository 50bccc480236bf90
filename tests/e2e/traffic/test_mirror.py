"""A mirror gets copies of requests. Its responses are dropped, and it does not delay clients."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import fleet_of, pool_of, running
from tests.support.processes.http1 import Request
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import at_rest, eventually

_MIRRORS = pytest.mark.parametrize("kind", ["nginx", "envoy"])


def _fleet(main: Replica, shadow: Replica, percent: str = "100%", **keys: Any) -> Fleet:
    route = {"mirror": {"pool": "shadow", "percent": percent}, **keys}
    return fleet_of([main], route=route, pools={"shadow": pool_of([shadow])})


@_MIRRORS
def test_mirror_gets_the_request_and_its_answer_is_dropped(kind: Kind) -> None:
    body = b"y" * 70_000
    with replicas("main", "shadow") as (main, shadow), running(kind, _fleet(main, shadow)) as gateway:
        shadow.behave(status=500, headers=(("set-cookie", "shadow=1"),))
        sent = {"x-user": "ada", "content-type": "text/plain", "host": "api.example.com"}
        answers = [gateway.post("/v1/chat?a=%41&b", body, sent, chunked=chunked) for chunked in (False, True)]
        answers.append(gateway.get("/v1/models", sent))
        eventually(lambda: len(shadow.seen) == 3)
    assert [(answer.status, answer.replica) for answer in answers] == [(200, "main")] * 3
    assert not any(answer.header_list("set-cookie") for answer in answers)
    seen = (sorted(replica.seen, key=lambda each: str(each.header("x-request-id"))) for replica in (main, shadow))
    for original, copy in zip(*seen, strict=True):
        assert (copy.method, copy.path, copy.body) == (original.method, original.path, original.body)
        for name in ("x-user", "content-type", "host", "x-request-id", "x-forwarded-proto"):
            assert copy.header(name) == original.header(name), name


@_MIRRORS
def test_part_of_the_requests_is_mirrored(kind: Kind) -> None:
    with replicas("main", "shadow") as (main, shadow), running(kind, _fleet(main, shadow, "20%")) as gateway:
        load = gateway.load(500, 4, Request("POST", body=b"{}"))
        copies = at_rest(lambda: shadow.requests)
    load.assert_no_failure()
    assert load.by_replica == {"main": 500}
    assert copies / 500 == pytest.approx(0.2, abs=0.1)


@_MIRRORS
def test_failing_mirror_does_not_affect_clients(kind: Kind) -> None:
    """Each client has its own connection: with nginx a connection waits for its copy before its next request."""

    def send(problem: str) -> None:
        load = gateway.load(20, 5, Request("POST", body=b"{}"), keep_alive=False)
        load.assert_no_failure()
        assert load.by_replica == {"main": 20}, problem

    with replicas("main", "shadow") as (main, shadow), running(kind, _fleet(main, shadow)) as gateway:
        shadow.held = True
        send("slow")
        shadow.held = False
        shadow.behave(fault="reset")
        send("reset")
        shadow.refuse()
        send("refused")


def test_slow_mirror_delays_no_connection_of_envoy() -> None:
    with replicas("main", "shadow") as (main, shadow), running("envoy", _fleet(main, shadow)) as gateway:
        shadow.held = True
        load = gateway.load(40, 2, Request("POST", body=b"{}"))
    load.assert_no_failure()
    assert load.connections == 2


def test_slow_mirror_occupies_only_its_connection_of_nginx() -> None:
    """As the table of capabilities documents."""
    with replicas("main", "shadow") as (main, shadow), running("nginx", _fleet(main, shadow)) as gateway:
        shadow.held = True
        load = gateway.send_load(2, 1, Request("POST", body=b"{}"))
        eventually(lambda: (shadow.in_flight, main.requests) == (1, 1))
        time.sleep(0.5)
        assert main.requests == 1
        shadow.held = False
        load.result(60).assert_no_failure()


@_MIRRORS
def test_mirror_does_not_disturb_websockets(kind: Kind) -> None:
    messages = ["one", "two", "three"]
    with (
        replicas("main", "shadow") as (main, shadow),
        running(kind, _fleet(main, shadow, websocket=True)) as gateway,
    ):
        echo = gateway.websocket("/ws", messages, gap=0.2)
        assert gateway.post("/v1/chat", b"{}").ok
        eventually(lambda: "/v1/chat" in [seen.path for seen in shadow.seen])
    assert (echo.replica, list(echo.replies)) == ("main", messages)


@_MIRRORS
def test_mirrored_request_is_rewritten(kind: Kind) -> None:
    keys: dict[str, Any] = {
        "match": {"path_prefix": "/v1/chat"},
        "rewrite": {"path_prefix": "/generate", "host": "models.internal"},
        "headers": {"request": {"set": {"x-gateway": "lbctl"}, "remove": ["x-debug"]}},
    }
    with replicas("main", "shadow") as (main, shadow), running(kind, _fleet(main, shadow, **keys)) as gateway:
        assert gateway.post("/v1/chat/completions?x=1", b"{}", {"x-debug": "1"}).ok
        eventually(lambda: len(shadow.seen) == 1)
    for seen in (main.seen[0], shadow.seen[0]):
        assert (seen.path, seen.header("host")) == ("/generate/completions?x=1", "models.internal")
        assert (seen.header("x-gateway"), seen.header("x-debug")) == ("lbctl", None)


@_MIRRORS
def test_log_contains_no_mirrored_request(kind: Kind) -> None:
    with replicas("main", "shadow") as (main, shadow), running(kind, _fleet(main, shadow)) as gateway:
        for _ in range(3):
            assert gateway.post("/v1").ok
        eventually(lambda: shadow.requests == 3)
        lines = gateway.access_log(3)
    logged = [(line["route"], line["pool"], line["replica"], line["path"], line["status"]) for line in lines]
    assert logged == [("everything", "pool", "main", "/v1", 200)] * 3


def test_mirror_path_is_closed_to_clients() -> None:
    """nginx sends copies through a separate location."""
    with replicas("main", "shadow") as (main, shadow), running("nginx", _fleet(main, shadow)) as gateway:
        answers = [gateway.get(f"/.lbctl/mirror/{number}") for number in (0, 1)]
    assert {(answer.status, answer.replica) for answer in answers} <= {(404, None), (200, "main")}


def test_haproxy_reports_that_it_does_not_mirror() -> None:
    with replicas("main", "shadow") as (main, shadow), running("haproxy", _fleet(main, shadow)) as gateway:
        assert "LB428" in gateway.messages
        assert gateway.post().replica == "main"
    assert shadow.requests == 0

"""WebSockets pass where the route says so, both ways and through silence, and nowhere else."""

from __future__ import annotations

from pathlib import Path

from tests.support.processes.binaries import Kind
from tests.support.processes.certs import Authority, client_context
from tests.support.processes.fleet import fleet_of, running
from tests.support.processes.replicas import replicas


def test_messages_pass_both_ways(kind: Kind) -> None:
    messages = [f"message {number} – ä" for number in range(20)] + ["x" * 200_000]
    with replicas("a") as pool, running(kind, fleet_of(pool, route={"websocket": True})) as gateway:
        echo = gateway.websocket("/ws?room=1", messages)
        assert gateway.get("/plain").ok
    assert (echo.status, echo.replica, list(echo.replies)) == (101, "a", messages)


def test_a_conversation_outlives_silence(kind: Kind) -> None:
    route = {"websocket": True, "timeouts": {"idle": "30s"}}
    with replicas("a") as pool, running(kind, fleet_of(pool, route=route)) as gateway:
        echo = gateway.websocket("/ws", ["before", "after"], gap=3)
    assert echo.replies == ("before", "after")


def test_silence_beyond_idle_ends_a_conversation(kind: Kind) -> None:
    route = {"websocket": True, "timeouts": {"idle": "1s"}}
    with replicas("a") as pool, running(kind, fleet_of(pool, route=route)) as gateway:
        echo = gateway.websocket("/ws?replies=1", ["before", "after"])
    assert echo.replies == ("before",)


def test_a_route_without_websocket_does_not_upgrade(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, fleet_of([a])) as gateway:
        echo = gateway.websocket("/ws", ["one"])
        assert gateway.get("/plain").ok
    assert (echo.status, echo.replies) == (403 if kind == "envoy" else 400, ())  # 400: the replica's, to plain HTTP
    assert [seen for seen in a.seen if (seen.header("upgrade") or "").lower() == "websocket"] == []


def test_a_websocket_route_takes_plain_requests_too(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, fleet_of([a], route={"websocket": True})) as gateway:
        gateway.load(20, 2).assert_no_failure()
        assert gateway.post("/", b"x" * 10_000, chunked=True).ok
    assert all(seen.header("upgrade") is None for seen in a.seen)


def test_websockets_pass_over_tls(kind: Kind, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("a.example.com")
    files = {"tls/a.crt": pair.certificate.read_bytes(), "tls/a.key": pair.key.read_bytes()}
    tls = {"certificates": [{"certificate": "tls/a.crt", "key": "tls/a.key"}]}
    trust = client_context(authority.ca)
    with replicas("a") as pool:
        fleet = fleet_of(pool, route={"websocket": True}, listener={"tls": tls})
        with running(kind, fleet, files=files, tls=trust, server_name="a.example.com") as gateway:
            echo = gateway.websocket("/ws", ["one", "two"])
    assert (echo.status, echo.replies) == (101, ("one", "two"))


def test_messages_pass_where_other_routes_go_by_the_body(kind: Kind) -> None:
    """Nothing waits for a conversation's end to look for a model in it."""
    with replicas("a") as pool:
        fleet = fleet_of(pool, route={"websocket": True})
        fleet["routes"]["model"] = {"match": {"path_prefix": "/v1", "model": ["gpt"]}, "pool": "pool"}
        with running(kind, fleet) as gateway:
            echo = gateway.websocket("/ws", ["one", "two"])
    assert (echo.status, echo.replies) == (101, ("one", "two"))

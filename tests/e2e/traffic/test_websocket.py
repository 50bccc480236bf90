"""WebSockets pass only on routes that enable them, in both directions and through silence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.binaries import KINDS, Kind
from tests.support.processes.certs import Authority, client_context
from tests.support.processes.client import Echo
from tests.support.processes.fleet import Gateway, fleet_of, running
from tests.support.processes.replicas import Replica, replicas


@dataclass(frozen=True, slots=True)
class _Site:
    gateway: Gateway
    replica: Replica


@pytest.fixture(scope="module")
def sites() -> Iterator[Mapping[Kind, _Site]]:
    """Run each proxy with its own replica.

    The route `/` has websockets, `/none` has not, `/idle-…` limit the silence.
    """
    with ExitStack() as stack:
        started: dict[Kind, _Site] = {}
        for kind in KINDS:
            (replica,) = stack.enter_context(replicas("a"))
            routes: dict[str, dict[str, Any]] = {
                "none": {},
                "idle-1s": {"websocket": True, "timeouts": {"idle": "1s"}},
                "idle-30s": {"websocket": True, "timeouts": {"idle": "30s"}},
            }
            for name, keys in routes.items():
                keys |= {"match": {"path_prefix": f"/{name}"}, "rewrite": {"path_prefix": "/"}, "pool": "pool"}
            fleet = fleet_of([replica], route={"websocket": True}, routes=routes)
            started[kind] = _Site(stack.enter_context(running(kind, fleet)), replica)
        yield started


def _converse(sites: Mapping[Kind, _Site], path: str, gap: float = 0.0) -> dict[Kind, Echo]:
    """Send two messages through each proxy, at the same time."""
    with ThreadPoolExecutor(len(sites)) as threads:
        echoes = {
            kind: threads.submit(site.gateway.websocket, path, ["before", "after"], gap) for kind, site in sites.items()
        }
        return {kind: echo.result() for kind, echo in echoes.items()}


def test_messages_pass_both_ways(sites: Mapping[Kind, _Site]) -> None:
    messages = [f"message {number} – ä" for number in range(20)] + ["x" * 200_000]
    for kind, site in sites.items():
        echo = site.gateway.websocket("/ws?room=1", messages)
        assert site.gateway.get("/plain").ok, kind
        assert (kind, echo.status, echo.replica, list(echo.replies)) == (kind, 101, "a", messages)


def test_conversation_survives_silence(sites: Mapping[Kind, _Site]) -> None:
    replies = {kind: echo.replies for kind, echo in _converse(sites, "/idle-30s/ws", gap=2).items()}
    assert replies == dict.fromkeys(KINDS, ("before", "after"))


def test_silence_beyond_idle_ends_the_conversation(sites: Mapping[Kind, _Site]) -> None:
    replies = {kind: echo.replies for kind, echo in _converse(sites, "/idle-1s/ws?replies=1").items()}
    assert replies == dict.fromkeys(KINDS, ("before",))


def test_route_without_websocket_does_not_upgrade(sites: Mapping[Kind, _Site]) -> None:
    """Envoy rejects the request. The others forward it as plain HTTP, and the replica rejects it."""
    for kind, site in sites.items():
        site.replica.forget()
        echo = site.gateway.websocket("/none/ws", ["one"])
        assert site.gateway.get("/none/plain").ok, kind
        assert (kind, echo.status, echo.replies) == (kind, 403 if kind == "envoy" else 400, ())
        upgrades = [seen for seen in site.replica.seen if (seen.header("upgrade") or "").lower() == "websocket"]
        assert (kind, upgrades) == (kind, [])


def test_websocket_route_serves_plain_requests(sites: Mapping[Kind, _Site]) -> None:
    for kind, site in sites.items():
        site.replica.forget()
        site.gateway.load(20, 2).assert_no_failure()
        assert site.gateway.post("/", b"x" * 10_000, chunked=True).ok, kind
        assert all(seen.header("upgrade") is None for seen in site.replica.seen), kind


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


def test_messages_pass_next_to_model_routing(kind: Kind) -> None:
    """No proxy buffers a conversation to look for a model in it."""
    with replicas("a") as pool:
        fleet = fleet_of(pool, route={"websocket": True})
        fleet["routes"]["model"] = {"match": {"path_prefix": "/v1", "model": ["gpt"]}, "pool": "pool"}
        with running(kind, fleet) as gateway:
            echo = gateway.websocket("/ws", ["one", "two"])
    assert (echo.status, echo.replies) == (101, ("one", "two"))

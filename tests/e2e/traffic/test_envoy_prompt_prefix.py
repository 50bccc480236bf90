"""Envoy's hash of a prompt's beginning: similar prompts go to the same replica, and the body arrives unchanged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.processes.fleet import Gateway, fleet_of, pool_of, running
from tests.support.processes.replicas import Replica, replicas

_JSON = {"Content-Type": "application/json"}
_MEMBERS = ("a", "b", "c", "d")


@contextmanager
def _served(length: int = 24, **more: Any) -> Iterator[tuple[list[Replica], Gateway]]:
    balance = {"algorithm": "hash", "hash": {"key": {"prompt_prefix": length}}}
    with replicas(*_MEMBERS) as members:
        fleet = fleet_of(pool_of(members, balance=balance), **more)
        with running("envoy", fleet, options=["--check"]) as gateway:
            yield list(members), gateway


def _homes(gateway: Gateway, bodies: list[bytes]) -> list[str | None]:
    answers = [gateway.post("/", body, _JSON) for body in bodies]
    assert all(answer.ok for answer in answers)
    return [answer.replica for answer in answers]


def _chat(*contents: object, model: str = "m", **more: object) -> bytes:
    messages = [{"role": "user", "content": content} for content in contents]
    return json.dumps({"temperature": 0.5, "messages": messages, "model": model, **more}).encode()


def test_prompts_with_the_same_beginning_share_a_replica() -> None:
    alike = [json.dumps({"prompt": "x" * 24 + f" {n}", "n": n, "model": "m"}).encode() for n in range(12)]
    unlike = [json.dumps({"prompt": f"question {n}", "model": "m"}).encode() for n in range(40)]
    with _served() as (_, gateway):
        assert len(set(_homes(gateway, alike))) == 1
        homes = _homes(gateway, unlike)
        assert _homes(gateway, unlike) == homes
    assert set(homes) == set(_MEMBERS)


def test_chat_key_is_the_model_and_two_messages() -> None:
    system = 'You "help" \\ [with] {all} \n of it. '
    long = [_chat(system, "first", f"turn {n}" * 5000, stream=True) for n in range(6)]
    listed = [_chat([{"type": "text", "text": "part"}], "b", str(n)) for n in range(6)]
    models = [_chat("same", model=f"model-{n}") for n in range(40)]
    users = [_chat("s", f"user {n}") for n in range(40)]
    with _served(120) as (members, gateway):
        assert len(set(_homes(gateway, long))) == 1
        assert sorted(seen.body for one in members for seen in one.seen) == sorted(long)
        assert len(set(_homes(gateway, listed))) == 1
        assert set(_homes(gateway, models)) == set(_MEMBERS)
        assert set(_homes(gateway, users)) == set(_MEMBERS)


def test_request_without_a_prompt_is_served() -> None:
    bodies = [
        b"",
        b"{",
        b"[1]",
        b"null",
        b'{"prompt"',
        b'{"prompt":',
        b'{"prompt": "x',
        b'{"messages": [{]}',
        b"\xff" * 99,
    ]
    bodies += [b'{"messages": "x", "model": 5}', b'{"messages": []}', b'{"a" "b"}', b'{"prompt": null}', b"{" * 5000]
    with _served(routes={"up": {"match": {"path": "/ws"}, "pool": "pool", "websocket": True}}) as (members, gateway):
        assert all(gateway.post("/", body, _JSON).ok for body in bodies)
        assert all(gateway.post("/", body, _JSON, chunked=True).ok for body in bodies)
        assert gateway.get("/").ok
        assert gateway.websocket("/ws", ["hello"]).replies == ("hello",)
        assert gateway.proxy.stderr.read_text().count("script log") == 0
    assert not [name for one in members for seen in one.seen for name, _ in seen.headers if "lbctl" in name.lower()]


def test_body_beyond_the_buffer_is_refused() -> None:
    with _served() as (members, gateway):
        answer = gateway.post("/", _chat("x" * 2_000_000), _JSON)
        assert (answer.status, answer.json["error"]["type"]) == (413, "too_large")
    assert sum(one.requests for one in members) == 0

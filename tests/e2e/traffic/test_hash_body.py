"""With a hash of the body, the same user or the same beginning of a prompt goes to the same replica."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.client import Client
from tests.support.processes.fleet import Gateway, fleet_of, pool_of, running
from tests.support.processes.http1 import Request
from tests.support.processes.replicas import Replica, replicas

_KEYS = 90
_JSON = {"content-type": "application/json"}
_READS_BODIES = pytest.mark.parametrize("kind", ["haproxy", "envoy"])
_READS_PROMPTS = pytest.mark.parametrize("kind", ["haproxy", "envoy"])


def _fleet(pool: list[Replica], key: dict[str, Any], **listener: Any) -> Fleet:
    balance = {"algorithm": "hash", "hash": {"key": key}}
    return fleet_of(pool_of(pool, balance=balance), listener=listener)


_Start = Callable[[Kind, str], Gateway]


@pytest.fixture(scope="module")
def started() -> Iterator[_Start]:
    """Start each proxy at most once for a key (in JSON) of the hash."""
    with ExitStack() as stack:
        members = stack.enter_context(replicas("a", "b", "c"))
        yield functools.cache(lambda kind, key: stack.enter_context(running(kind, _fleet(members, json.loads(key)))))


def _homes(client: Client, body: Callable[[int], object], *, chunked: bool = False) -> dict[int, str]:
    """Return number → the replica that answered."""

    def make(number: int) -> Request:
        return Request("POST", "/v1", _JSON, json.dumps(body(number)).encode(), chunked)

    load = client.load(_KEYS, 1, make)
    load.assert_no_failure()
    return {number: answer.replica or "" for number, answer in enumerate(load.responses)}


def _spread(homes: dict[int, str]) -> int:
    return min(Counter(homes.values())[name] for name in ("a", "b", "c"))


@_READS_BODIES
def test_body_field_selects_the_replica(started: _Start, kind: Kind) -> None:
    gateway = started(kind, '{"json_body": "$.user"}')
    homes = _homes(gateway, lambda number: {"user": f"u{number}"})
    elsewhere = _homes(gateway, lambda number: {"messages": ["x" * 9000], "user": f"u{number}"}, chunked=True)
    nested = _homes(gateway, lambda number: {"user": "one", "metadata": {"user": f"u{number}"}})
    assert elsewhere == homes
    assert _spread(homes) >= _KEYS * 0.1
    assert len(set(nested.values())) == 1


@pytest.mark.parametrize("key", [{"json_body": "$.user"}, {"prompt_prefix": 64}], ids=["field", "prompt"])
@_READS_BODIES
def test_escaped_slash_equals_a_slash(started: _Start, kind: Kind, key: dict[str, Any]) -> None:
    gateway = started(kind, json.dumps(key))
    texts = [json.dumps({"user": f"team/u{number}", "prompt": f"say a/{number}"}) for number in range(30)]
    written, escaped = (
        [gateway.post("/v1", text.encode(), _JSON).replica for text in bodies]
        for bodies in (texts, [text.replace("/", "\\/") for text in texts])
    )
    assert escaped == written
    assert len(set(written)) == 3


@_READS_BODIES
def test_nested_body_field_selects_the_replica(started: _Start, kind: Kind) -> None:
    gateway = started(kind, '{"json_body": "$.metadata.user"}')
    homes = _homes(gateway, lambda number: {"user": str(number % 3), "metadata": {"user": f"u{number}"}})
    again = _homes(gateway, lambda number: {"metadata": {"x": 1, "user": f"u{number}"}})
    assert again == homes
    assert _spread(homes) >= _KEYS * 0.1


@_READS_BODIES
def test_request_without_the_field_is_served(started: _Start, kind: Kind) -> None:
    gateway = started(kind, '{"json_body": "$.user"}')
    for body in (b"", b"no json", b"{}", b'{"user": null}', b'{"user": 5}', b'{"user": ""}', b'["user"]'):
        assert gateway.post("/v1", body, _JSON).ok
    assert gateway.get("/v1").ok
    assert gateway.post("/v1", b"user", {"content-type": "text/plain"}).ok


@_READS_BODIES
def test_field_beyond_the_inspected_body_is_413(kind: Kind) -> None:
    limit = {"haproxy": {"inspect": "32KiB"}, "envoy": {"max_body": "32KiB"}}[kind]
    deep = json.dumps({"messages": "x" * 200_000, "user": "u"}).encode()
    with replicas("a", "b", "c") as pool:
        with running(kind, _fleet(pool, {"json_body": "$.user"}, **limit)) as gateway:
            answers = [gateway.post("/v1", deep, _JSON, chunked=chunked) for chunked in (False, True)]
        assert sum(replica.requests for replica in pool) == 0
    assert [answer.status for answer in answers] == [413, 413]


@_READS_PROMPTS
def test_prompts_with_the_same_beginning_share_a_replica(started: _Start, kind: Kind) -> None:
    """Only the first 64 bytes of the prompt count."""
    gateway = started(kind, '{"prompt_prefix": 64}')
    homes = _homes(gateway, lambda number: {"model": "m", "prompt": f"{number:04} " + "y" * 80})
    longer = _homes(gateway, lambda number: {"model": "m", "prompt": f"{number:04} " + "y" * 70 + f"z{number}"})
    one = _homes(gateway, lambda number: {"model": "m", "prompt": "y" * 64 + str(number)})
    models = _homes(gateway, lambda number: {"model": f"m{number}", "prompt": "y" * 64})
    assert longer == homes
    assert _spread(homes) >= _KEYS * 0.1
    assert len(set(one.values())) == 1
    assert _spread(models) >= _KEYS * 0.1


@_READS_PROMPTS
def test_chats_with_the_same_beginning_share_a_replica(started: _Start, kind: Kind) -> None:
    def chat(system: str, question: str) -> dict[str, Any]:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        return {"model": "m", "messages": messages, "stream": False}

    gateway = started(kind, '{"prompt_prefix": 64}')
    homes = _homes(gateway, lambda number: chat(f"You are helper {number}. " + "z" * 64, "hi"))
    others = _homes(gateway, lambda number: chat(f"You are helper {number}. " + "z" * 64, f"question {number}"))
    short = _homes(gateway, lambda number: chat("Be brief.", f"question {number}"))
    assert others == homes
    assert _spread(homes) >= _KEYS * 0.1
    assert _spread(short) >= _KEYS * 0.1  # a short system prompt does not send all chats to one replica


@pytest.mark.parametrize(("key", "code"), [({"json_body": "$.user"}, "LB460"), ({"prompt_prefix": 64}, "LB461")])
def test_nginx_reports_that_it_reads_no_body(started: _Start, key: dict[str, Any], code: str) -> None:
    gateway = started("nginx", json.dumps(key))
    assert code in gateway.messages
    homes = _homes(gateway, lambda _: {"user": "one", "prompt": "one"})
    assert _spread(homes) > 0

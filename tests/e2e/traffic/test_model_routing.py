"""A request goes to the pool of the model in its JSON body or in the header x-model."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.client import Client
from tests.support.processes.fleet import Gateway, fleet_of, pool_of, running
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_READS_BODIES = pytest.mark.parametrize("kind", ["haproxy", "envoy"])
_JSON = {"content-type": "application/json"}


def _fleet(pools: list[Replica], **listener: Any) -> Fleet:
    """Return a fleet with pools for `llama` and its fine-tunes, for `gpt`, and for `other` models."""
    llama, gpt, other = pools
    return fleet_of(
        [other],
        listener=listener,
        routes={
            "llama": {"match": {"path_prefix": "/v1/", "model": ["llama-3.1-70b", "llama-3.1-70b-*"]}, "pool": "llama"},
            "gpt": {"match": {"path_prefix": "/v1/", "model": ["gpt"]}, "pool": "gpt"},
        },
        pools={"llama": pool_of([llama]), "gpt": pool_of([gpt])},
    )


_Start = Callable[[Kind], Gateway]


@pytest.fixture(scope="module")
def started() -> Iterator[_Start]:
    """Start each proxy at most once, with the replicas `llama`, `gpt` and `other`."""
    with ExitStack() as stack:
        members = stack.enter_context(replicas("llama", "gpt", "other"))
        yield functools.cache(lambda kind: stack.enter_context(running(kind, _fleet(members))))


def _chat(client: Client, body: object, headers: dict[str, str] = _JSON, *, chunked: bool = False) -> str | None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post("/v1/chat/completions", data, headers, chunked=chunked)
    assert answer.ok, answer
    assert answer.json["body"].encode("latin-1") == data
    return answer.replica


_BODIES: list[tuple[object, str]] = [
    ({"model": "llama-3.1-70b", "messages": []}, "llama"),
    ({"messages": [{"role": "user", "content": "hi"}], "model": "gpt"}, "gpt"),
    ({"model": "llama-3.1-70b-sql"}, "llama"),
    (b'\xef\xbb\xbf{"id": "a\\/b", "model": "gpt"}', "gpt"),
    ({"model": "llama-3.1-70b-"}, "llama"),
    ({"model": "llama-3.1-70b-\n"}, "llama"),
    ({"model": "llama-3.1-70b-\nx"}, "llama"),
    (rb'{"model": "llama-3.1-70b-a\/b"}', "llama"),
    (rb'{"messages": [{"content": "a\/b"}], "model": "gpt"}', "gpt"),
    (rb'{"messages": [{"content": "a\\/b \/"}], "model": "gpt"}', "gpt"),
    ({"model": "llama-3.1-70bx"}, "other"),
    ({"model": "llama-3x1-70b"}, "other"),
    ({"model": "x-llama-3.1-70b-sql"}, "other"),
    ({"model": "GPT"}, "other"),
    ({"model": "gpt4"}, "other"),
    ({"model": ""}, "other"),
    ({"model": None}, "other"),
    ({"model": 5}, "other"),
    ({"messages": [{"content": '{"model":"gpt"}', "model": "gpt"}]}, "other"),
    ({"messages": [{"content": '"model":"gpt"'}], "model": "llama-3.1-70b"}, "llama"),
    ([{"model": "gpt"}], "other"),
    (b"gpt", "other"),
    (b'{"model": ', "other"),
    (b"", "other"),
]


def test_multipart_form_is_routed_by_path_and_header(started: _Start, kind: Kind) -> None:
    """In audio requests of OpenAI, `model` may follow the file. No proxy looks for it there."""
    form = b"".join(
        b'--x\r\ncontent-disposition: form-data; name="%s"\r\n\r\n%s\r\n' % part
        for part in ((b"file", b"R" * 100_000), (b"model", b"gpt"))
    )
    headers = {"content-type": "multipart/form-data; boundary=x"}
    gateway = started(kind)
    assert _chat(gateway, form + b"--x--\r\n", headers) == "other"
    assert _chat(gateway, form + b"--x--\r\n", headers | {"x-model": "gpt"}) == "gpt"


@_READS_BODIES
def test_model_in_a_json_body_selects_the_pool(started: _Start, kind: Kind) -> None:
    gateway = started(kind)
    chosen = [(body, _chat(gateway, body)) for body, _ in _BODIES]
    assert chosen == _BODIES


@_READS_BODIES
@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON", "application/x+json"])
def test_each_json_content_type_is_read(started: _Start, kind: Kind, content_type: str) -> None:
    gateway = started(kind)
    assert _chat(gateway, {"model": "gpt"}, {"content-type": content_type}) == "gpt"


@_READS_BODIES
@pytest.mark.parametrize("content_type", ["application/x-www-form-urlencoded", "text/plain; charset=utf-8"])
def test_json_with_another_content_type_is_read(started: _Start, kind: Kind, content_type: str) -> None:
    """curl sends -d as a form."""
    gateway = started(kind)
    bodies: list[object] = [{"model": "gpt"}, b"model=gpt&x=1", b'"model": "gpt"', b"{", b"[]", b"\xff\x00"]
    chosen = [_chat(gateway, body, {"content-type": content_type}) for body in bodies]
    long = _chat(gateway, b"model=gpt&x=" + b"y" * 100_000, {"content-type": content_type})
    assert (chosen, long) == (["gpt", *["other"] * 5], "other")


@pytest.mark.parametrize("content_type", ["multipart/form-data; boundary=x", "application/octet-stream", "audio/wav"])
def test_envoy_does_not_buffer_uploads(started: _Start, content_type: str) -> None:
    gateway = started("envoy")
    assert _chat(gateway, b"x" * (3 << 20), {"content-type": content_type, "x-model": "gpt"}) == "gpt"
    assert _chat(gateway, b"x" * (3 << 20), {"content-type": content_type}) == "other"


@_READS_BODIES
def test_body_without_length_or_content_type_is_read(started: _Start, kind: Kind) -> None:
    long = {"messages": "x" * 30_000, "model": "gpt"}
    gateway = started(kind)
    chunked = [_chat(gateway, body, chunked=True) for body in ({"model": "gpt"}, long)]
    untyped = _chat(gateway, {"model": "gpt"}, {})
    assert (chunked, untyped) == (["gpt", "gpt"], "gpt")


def test_model_header_overrides_the_body(kind: Kind) -> None:
    cases = [
        ("gpt", b"{}", "gpt"),
        ("llama-3.1-70b-sql", b"{}", "llama"),
        ("llama-3.1-70bx", b"{}", "other"),
        ("gpt", b'{"model": "llama-3.1-70b"}', "gpt"),
        ("llama-3.1-70b", b'{"model": "gpt"}', "llama"),
        ("neither", b'{"model": "gpt"}', "other"),
        ("gpt", b"x" * 20_000, "gpt"),
    ]
    with replicas("llama", "gpt", "other") as pools, running(kind, _fleet(pools)) as gateway:
        chosen = [(model, body, _chat(gateway, body, {**_JSON, "X-Model": model})) for model, body, _ in cases]
        assert gateway.get("/v1/models", {"x-model": "gpt"}).replica == "gpt"
        assert gateway.get("/v1/models").replica == "other"
        logged = gateway.access_log(len(cases) + 2)
    assert chosen == cases
    assert [line["model"] for line in logged][: len(cases)] == [model for model, _, _ in cases]


def test_nginx_reports_that_it_reads_no_body(started: _Start) -> None:
    gateway = started("nginx")
    assert "LB421" in gateway.messages
    assert _chat(gateway, {"model": "gpt"}) == "other"


def test_404_of_an_unknown_model_has_its_own_code(kind: Kind) -> None:
    """It gives the reason: the model is unknown, none is named, or, on another path, there is no route."""
    with replicas("gpt") as (gpt,):
        match = {"path_prefix": "/v1", "methods": ["POST", "GET"], "model": ["gpt"]}
        with running(kind, {**fleet_of([gpt]), "routes": {"gpt": {"match": match, "pool": "pool"}}}) as gateway:
            reads_bodies = kind != "nginx"
            unknown = [
                gateway.post("/v1/chat", b"{}", {**_JSON, "x-model": "other"}),
                gateway.get("/v1/chat?model=other"),
                *((gateway.post("/v1/chat", b'{"model": "other"}', _JSON),) * reads_bodies),
            ]
            unnamed = [
                *(gateway.post("/v1/chat", body, _JSON) for body in (b"", b"{}", b"[1", b"not JSON")),
                gateway.get("/v1/chat"),
                *((gateway.post("/v1/chat", b'{"model": "gpt"}', _JSON),) * (not reads_bodies)),
            ]
            elsewhere = [
                gateway.post("/v2", b'{"model": "gpt"}', {**_JSON, "x-model": "gpt"}),
                gateway.request("PUT", "/v1/chat", {"x-model": "gpt"}),
            ]
            assert gateway.post("/v1/chat", b"{}", {**_JSON, "x-model": "gpt"}).replica == "gpt"
    for answers, start, code in (
        (unknown, "no route accepts this model", "model_not_found"),
        (unnamed, "the request names no model: ", "model_not_found"),
        (elsewhere, "no route", "not_found"),
    ):
        errors = [item.json["error"] for item in answers]
        assert {(item.status, item.header("content-type")) for item in answers} == {(404, "application/json")}
        assert {(item["message"].startswith(start), item["type"], item["code"]) for item in errors} == {
            (True, "not_found", code)
        }
    assert {item.json["error"]["message"] for item in elsewhere} == {"no route"}


@_READS_BODIES
def test_model_routing_does_not_delay_events(kind: Kind) -> None:
    with replicas("llama", "gpt", "other") as pools:
        fleet = _fleet(pools)
        fleet["routes"]["gpt"]["match"] = {"path_prefix": "/", "model": ["gpt"]}
        with running(kind, fleet) as gateway:

            def are_in_time() -> bool:
                """A machine may be busy once; if the first event is held until the last, the lag is 2 s each time."""
                answer = gateway.post("/sse?n=3&gap=1", b'{"model": "gpt"}', _JSON)
                assert answer.replica == "gpt"
                return max(event.lag for event in answer.events()) < 1.5

            eventually(are_in_time)


@_READS_BODIES
def test_invalid_body_goes_to_its_model_or_the_default(started: _Start, kind: Kind) -> None:
    """The replica rejects it. Only routes without protection do this (docs/develop/decisions/0011)."""
    gateway = started(kind)
    for body in (b"{broken", b'{"messages": [}, "model": "gpt"}', b'{"model": }', b"model=gpt"):
        assert _chat(gateway, body) == "other"
    for body in (b'{"model": "gpt", "messages": [', b'{"model": "gpt"} {"model": "llama-3.1-70b"}'):
        assert _chat(gateway, body) == ("gpt" if kind == "haproxy" else "other")

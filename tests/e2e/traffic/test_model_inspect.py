"""If the model is beyond the held part of the body, the response is 413, and never another pool."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import fleet_of, pool_of, running
from tests.support.processes.replicas import Replica, replicas

_JSON = {"content-type": "application/json"}
_HELD = 64 * 1024


def _fleet(gpt: Replica, other: Replica, **listener: Any) -> Fleet:
    route = {"match": {"path_prefix": "/", "model": ["gpt"]}, "pool": "gpt"}
    listener = listener or {"inspect": "64KiB"}
    return fleet_of([other], listener=listener, routes={"gpt": route}, pools={"gpt": pool_of([gpt])})


def _body(size: int) -> bytes:
    """Return a body with the model at the end."""
    frame = len(json.dumps({"messages": "", "model": "gpt"}))
    return json.dumps({"messages": "x" * (size - frame), "model": "gpt"}).encode()


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
@pytest.mark.parametrize("chunked", [False, True], ids=["with a length", "chunked"])
def test_model_beyond_the_inspected_body_is_413(kind: Kind, chunked: bool) -> None:
    with replicas("gpt", "other") as (gpt, other), running(kind, _fleet(gpt, other)) as gateway:
        deep = [gateway.post("/v1", _body(size), _JSON, chunked=chunked) for size in (4 * _HELD, 1 << 20)]
        within = gateway.post("/v1", _body(_HELD), {**_JSON, "cookie": "x" * 6000}, chunked=chunked)
    assert [(answer.status, answer.json["error"]["type"]) for answer in deep] == [(413, "too_large")] * 2
    assert within.replica == "gpt"
    assert (gpt.requests, other.requests) == (1, 0)


def test_haproxy_accepts_long_bodies_with_an_early_model() -> None:
    early = json.dumps({"model": "gpt", "messages": "x" * 3 * _HELD}).encode()
    with replicas("gpt", "other") as (gpt, other), running("haproxy", _fleet(gpt, other)) as gateway:
        answers = [
            gateway.post("/v1", early, _JSON),
            gateway.post("/v1", early, _JSON, chunked=True),
            gateway.post("/v1", b"x" * 3 * _HELD, {"x-model": "gpt"}),
        ]
    assert [(answer.status, answer.replica) for answer in answers] == [(200, "gpt")] * 3
    assert [len(seen.body) for seen in gpt.seen] == [len(early), len(early), 3 * _HELD]


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
def test_image_in_base64_is_routed_by_default(kind: Kind) -> None:
    """The SDKs of OpenAI write the model as the last key."""
    with replicas("gpt", "other") as (gpt, other), running(kind, _fleet(gpt, other, http2=True)) as gateway:
        answers = [gateway.post("/v1", _body(9 << 20), _JSON, chunked=chunked) for chunked in (False, True)]
        deep = gateway.post("/v1", _body(17 << 20), _JSON)
    assert [answer.replica for answer in answers] == ["gpt", "gpt"]
    assert deep.status == 413
    assert other.requests == 0


@pytest.mark.parametrize("rest", [None, {"status": 410, "body": "gone"}], ids=["404", "respond"])
@pytest.mark.parametrize("chunked", [False, True], ids=["with a length", "chunked"])
def test_long_body_needs_no_other_route(rest: dict[str, Any] | None, chunked: bool) -> None:
    """Before Envoy has read a body, no pool takes the request; at that stage, the same number of bytes must be held."""
    with replicas("gpt") as (gpt,):
        route = {"match": {"path_prefix": "/v1", "model": ["gpt"]}, "pool": "pool"}
        fleet = fleet_of([gpt], listener={"inspect": "1MiB"})
        fleet["routes"] = {"gpt": route, **({"rest": {"respond": rest}} if rest else {})}
        with running("envoy", fleet) as gateway:
            sizes = (100 << 10, 700 << 10, (1 << 20) - 100, 3 << 20)
            answers = [gateway.post("/v1", _body(size), _JSON, chunked=chunked) for size in sizes]
            other = gateway.post("/v1", _body(700 << 10).replace(b"gpt", b"gtp"), _JSON, chunked=chunked)
            small = gateway.get("/v1")
    assert [answer.status for answer in answers] == [200, 200, 200, 413]
    assert [len(seen.body) for seen in gpt.seen] == list(sizes[:3])
    assert [answer.status for answer in (other, small)] == [410 if rest else 404] * 2


def test_nginx_reports_the_lack_of_inspection() -> None:
    with replicas("gpt", "other") as (gpt, other), running("nginx", _fleet(gpt, other)) as gateway:
        assert "LB410" in gateway.messages


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
def test_route_without_model_accepts_longer_bodies(kind: Kind) -> None:
    limits = {"inspect": "64KiB", **({"max_body": "20MiB"} if kind == "haproxy" else {})}
    with replicas("gpt", "files") as (gpt, files):
        fleet = fleet_of([gpt], listener=limits)
        fleet["pools"]["files"] = pool_of([files])
        fleet["routes"] = {
            "gpt": {"match": {"path_prefix": "/v1", "model": ["gpt"]}, "pool": "pool"},
            "files": {"match": {"path": "/v1/files"}, "pool": "files"},
            "uploads": {"match": {"path_prefix": "/uploads"}, "pool": "files"},
        }
        with running(kind, fleet) as gateway:
            answers = [gateway.post(path, b"x" * 5 * _HELD, _JSON) for path in ("/v1/files", "/uploads/a", "/v1/chat")]
    assert [answer.status for answer in answers] == [200, 200, 413]
    assert [len(seen.body) for seen in files.seen] == [5 * _HELD] * 2

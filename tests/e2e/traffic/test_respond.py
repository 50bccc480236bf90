"""Answers of the proxy's own: `respond`, a redirect, and what a route says that must stay closed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import bind, fleet_of, running
from tests.support.processes.replicas import replicas

_ODD = "a \"quoted\" 'word' \\ $host ${x} %[src] %% {} ; # ä €\nsecond line\n"


def _fleet(respond: dict[str, Any]) -> Fleet:
    route = {"match": {"path_prefix": "/"}, "respond": respond}
    return {"version": 1, "listeners": {"gateway": {"bind": bind()}}, "routes": {"gone": route}, "pools": {}}


@pytest.mark.parametrize(
    ("status", "body", "content_type"),
    [
        (410, "gone: use /v1/chat/", "text/plain; charset=utf-8"),
        (200, json.dumps({"object": "list", "data": [{"id": "m", "price": "$5 100%"}]}), "application/json"),
        (451, _ODD, "text/plain; charset=utf-8"),
        (503, "x" * 2000, "text/plain; charset=utf-8"),
    ],
    ids=["text", "json", "odd", "long"],
)
def test_status_body_and_content_type_are_exact(kind: Kind, status: int, body: str, content_type: str) -> None:
    with running(kind, _fleet({"status": status, "body": body})) as gateway:
        answers = [gateway.get("/v0/predict?x=1"), gateway.post("/v0/predict", b"x" * 50_000)]
    for answer in answers:
        assert (answer.status, answer.error) == (status, "")
        assert answer.text == body
        assert (answer.header("content-type") or "").replace("; ", ";").lower() == content_type.replace("; ", ";")


@pytest.mark.parametrize("status", [200, 204, 429])
def test_each_status_works_without_a_body(kind: Kind, status: int) -> None:
    with running(kind, _fleet({"status": status})) as gateway:
        answer = gateway.get()
    assert (answer.status, answer.body, answer.error) == (status, b"", "")


def test_redirect_keeps_the_url(kind: Kind) -> None:
    with running(kind, _fleet({"redirect": "https"})) as gateway:
        hosts = [f"api.example.com:{gateway.port}", "api.example.com"]
        answers = [gateway.get("/v1/a%20b?x=%41&y", {"host": host}) for host in hosts]
        posted = gateway.post("/v1/chat", b"{}", {"host": "api.example.com"})
    for answer in answers:
        assert answer.status in (301, 308)
        location = (answer.header("location") or "").replace(":443/", "/")
        assert location == "https://api.example.com/v1/a%20b?x=%41&y"
    assert posted.status == 308  # a client makes a GET of a POST that got 301


@pytest.mark.parametrize(
    ("kind", "keys", "code"),
    [
        ("nginx", {"auth": {"jwt": {"issuer": "https://issuer.example.com", "jwks_file": "jwks.json"}}}, "LB444"),
        ("envoy", {"rate_limit": [{"by": "all", "concurrent": 5}]}, "LB442"),
    ],
)
def test_only_the_unprotectable_route_is_closed(kind: Kind, keys: dict[str, Any], code: str) -> None:
    open_route = {"match": {"path_prefix": "/open"}, "pool": "pool"}
    with replicas("a") as (a,):
        fleet = fleet_of([a], route=keys, routes={"open": open_route})
        with running(kind, fleet, files={"jwks.json": '{"keys": []}'}) as gateway:
            answers = [gateway.get(), gateway.post("/v1/chat", b"{}", {"authorization": "Bearer x"})]
            assert code in gateway.messages
            assert gateway.get("/open").replica == "a"
        assert a.requests == 1
    for answer in answers:
        assert (answer.status, answer.header("content-type")) == (503, "application/json")
        assert answer.json["error"]["type"] == "closed"


def test_response_has_the_route_headers(kind: Kind) -> None:
    fleet = _fleet({"status": 410, "body": "gone"})
    fleet["routes"]["gone"]["headers"] = {"response": {"set": {"x-served-by": "inference"}}}
    with running(kind, fleet) as gateway:
        answer = gateway.get("/v0/predict")
    assert (answer.status, answer.header("x-served-by")) == (410, "inference")


def test_redirect_has_the_route_headers(kind: Kind) -> None:
    fleet = _fleet({"redirect": "https"})
    fleet["routes"]["gone"]["headers"] = {"response": {"set": {"x-served-by": "inference"}}}
    with running(kind, fleet) as gateway:
        answer = gateway.get("/v0/predict")
    assert (answer.status // 100, answer.header("x-served-by")) == (3, "inference")


def test_content_type_of_the_route_is_the_only_one(kind: Kind) -> None:
    fleet = _fleet({"status": 410, "body": "{}"})
    fleet["routes"]["gone"]["headers"] = {"response": {"set": {"Content-Type": "application/problem+json", "x-a": "b"}}}
    with running(kind, fleet) as gateway:
        answer = gateway.get()
    assert answer.header_list("content-type") == ["application/problem+json"]
    assert answer.header_list("x-a") == ["b"]

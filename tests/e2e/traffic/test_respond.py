"""The proxy's own responses: `respond`, redirects, and routes that must stay closed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import KINDS, Kind
from tests.support.processes.fleet import Gateway, bind, fleet_of, pool_of, running
from tests.support.processes.replicas import replicas

_ODD = "a \"quoted\" 'word' \\ $host ${x} %[src] %% {} ; # ä €\nsecond line\n"


_JSON = json.dumps({"object": "list", "data": [{"id": "m", "price": "$5 100%"}]})
_ANSWERS: dict[str, dict[str, Any]] = {
    "text": {"status": 410, "body": "gone: use /v1/chat/"},
    "json": {"status": 200, "body": _JSON},
    "odd": {"status": 451, "body": _ODD},
    "long": {"status": 503, "body": "x" * 2000},
    "200": {"status": 200},
    "204": {"status": 204},
    "429": {"status": 429},
    "redirect": {"redirect": "https"},
    "with-header": {"status": 410, "body": "gone"},
    "redirect-with-header": {"redirect": "https"},
    "with-type": {"status": 410, "body": "{}"},
}
"""Routes by path. None of them has a pool."""
_SERVED_BY = {"x-served-by": "inference"}
_HEADERS = {
    "with-header": _SERVED_BY,
    "redirect-with-header": _SERVED_BY,
    "with-type": {"Content-Type": "application/problem+json", "x-a": "b"},
}


@pytest.fixture(scope="module", params=KINDS)
def gateway(request: pytest.FixtureRequest) -> Iterator[Gateway]:
    routes = {
        name: {
            "match": {"path_prefix": f"/{name}"},
            "respond": respond,
            "headers": {"response": {"set": _HEADERS.get(name, {})}},
        }
        for name, respond in _ANSWERS.items()
    }
    fleet: Fleet = {"version": 1, "listeners": {"gateway": {"bind": bind()}}, "routes": routes, "pools": {}}
    with running(request.param, fleet) as started:
        yield started


@pytest.mark.parametrize("name", ["text", "json", "odd", "long"])
def test_status_body_and_content_type_are_exact(gateway: Gateway, name: str) -> None:
    content_type = "application/json" if name == "json" else "text/plain;charset=utf-8"
    for answer in (gateway.get(f"/{name}/predict?x=1"), gateway.post(f"/{name}/predict", b"x" * 50_000)):
        assert (answer.status, answer.error) == (_ANSWERS[name]["status"], "")
        assert answer.text == _ANSWERS[name]["body"]
        assert (answer.header("content-type") or "").replace("; ", ";").lower() == content_type


def test_list_of_models_names_what_clients_can_use(kind: Kind) -> None:
    listed = {"match": {"path": "/v1/models"}, "respond": {"models": True}}
    routes = {
        "models": listed,
        "chat": {"match": {"path_prefix": "/v1/", "model": ["a[1m]", "big-*"]}, "pool": "big"},
        "rest": {"match": {"path_prefix": "/rest"}, "split": {"plain": 1, "nameless": 0}},
        "hidden": {"listeners": ["other"], "match": {"path_prefix": "/x", "model": ["hidden"]}, "pool": "plain"},
        "many": {"match": {"path_prefix": "/many", "model": [f"m-{i:04}" for i in range(400)]}, "pool": "nameless"},
    }
    pools = {
        "big": {**pool_of([]), "model": {"name": "big-70b", "adapters": ["big-sql", "small-sql"]}},
        "plain": {**pool_of([]), "model": {"name": 'pl"a$in'}},
        "nameless": pool_of([]),
    }
    for pool in pools.values():
        pool["replicas"] = [{"name": "r", "address": "127.0.0.1:9"}]
    listeners = {"gateway": {"bind": bind()}, "other": {"bind": bind()}}
    fleet: Fleet = {"version": 1, "listeners": listeners, "routes": routes, "pools": pools}
    with running(kind, fleet) as gateway:
        answer = gateway.get("/v1/models")
    assert (answer.status, answer.header("content-type")) == (200, "application/json")
    assert answer.json["object"] == "list"
    assert {(item["object"], item["owned_by"], item["created"]) for item in answer.json["data"]} == {
        ("model", "lbctl", 0)
    }
    names = [item["id"] for item in answer.json["data"]]
    assert names[:5] == ["a[1m]", "big-70b", "big-sql", "m-0000", "m-0001"]
    assert (names[-1], len(names)) == ('pl"a$in', 404)


@pytest.mark.parametrize("status", [200, 204, 429])
def test_each_status_works_without_a_body(gateway: Gateway, status: int) -> None:
    answer = gateway.get(f"/{status}")
    assert (answer.status, answer.body, answer.error) == (status, b"", "")


def test_redirect_keeps_the_url(gateway: Gateway) -> None:
    hosts = [f"api.example.com:{gateway.port}", "api.example.com"]
    for answer in [gateway.get("/redirect/a%20b?x=%41&y", {"host": host}) for host in hosts]:
        assert answer.status in (301, 308)
        location = (answer.header("location") or "").replace(":443/", "/")
        assert location == "https://api.example.com/redirect/a%20b?x=%41&y"
    post = gateway.post("/redirect/chat", b"{}", {"host": "api.example.com"})
    assert post.status == 308  # a client repeats a POST that got 301 as a GET


def test_response_has_the_route_headers(gateway: Gateway) -> None:
    answer = gateway.get("/with-header/predict")
    assert (answer.status, answer.header("x-served-by")) == (410, "inference")


def test_redirect_has_the_route_headers(gateway: Gateway) -> None:
    answer = gateway.get("/redirect-with-header/predict")
    assert (answer.status // 100, answer.header("x-served-by")) == (3, "inference")


def test_content_type_of_the_route_is_the_only_one(gateway: Gateway) -> None:
    answer = gateway.get("/with-type")
    assert answer.header_list("content-type") == ["application/problem+json"]
    assert answer.header_list("x-a") == ["b"]


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

"""Realtime sessions name their model in the query of a GET: `/v1/realtime?model=NAME`."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import quote

from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.shared import shared, shared_replicas

_ODD = "a[1m]/b c+d&e=f#é%"
_KEYS = {"auth": {"api_keys": {"file": "keys"}}}


def _route(*models: str, **keys: Any) -> dict[str, Any]:
    return {"match": {"path_prefix": "/v1/realtime", "model": list(models)}, "websocket": True, **keys}


def test_query_of_a_get_names_the_model(kind: Kind) -> None:
    with shared_replicas("other", "voice", "odd") as (other, voice, odd):
        routes = {"voice": _route("voice", "voice-*", pool="voice"), "odd": _route(_ODD, pool="odd")}
        routes["ws"] = {"match": {"path": "/ws", "model": ["voice"]}, "websocket": True, "pool": "voice"}
        routes["post"] = {"match": {"path": "/post", "methods": ["POST"], "model": ["voice"]}, "pool": "voice"}
        fleet = fleet_of([other], routes=routes, pools={"voice": pool_of([voice]), "odd": pool_of([odd])})
        with shared(kind, fleet) as gateway:
            path = "/v1/realtime"
            echo = gateway.websocket("/ws?model=voice", ["one"])
            assert (echo.status, echo.replica, echo.replies) == (101, "voice", ("one",))
            for query, replica in {
                "x=1&model=voice": "voice",
                "model=voice-2": "voice",
                f"model={quote(_ODD, safe='')}&x": "odd",
                "model=voice&model=other": "voice",
                "model=a[1m]/b+c%2bd%26e=f%23%c3%a9%25": "odd",
                "model=": "other",
                "model": "other",
                "amodel=voice": "other",
                "x=model=voice": "other",
                "model=voice%0A": "other",
                "model=Voice": "other",
                "model=xvoice": "other",
                "model=a[1m]/b+c+d%26e=f%23%c3%a9%25": "other",
            }.items():
                assert gateway.get(f"{path}?{query}").replica == replica, query
            assert gateway.get(f"{path}?model=voice", {"x-model": "other"}).replica == "other"
            assert gateway.post(f"{path}?model=voice", b"{}").replica == "other"
            assert gateway.get("/post?model=voice").replica == "other"


def test_model_in_a_query_does_not_avoid_the_key(kind: Kind) -> None:
    """If the model decides about keys, a GET whose query may name one is rejected; nginx closes the open route."""
    secret = {"match": {"path_prefix": "/", "model": ["secret"]}, "pool": "pool", **_KEYS}
    queries = [
        "model=secret", "x&model=secret", "MODEL=secret", "%6dodel=secret", "mode%6C=secret", "model%3Dsecret=",
        "model=open&model=secret", "model=%73ecret", "a;model=secret", "+model=secret", "model[]=secret",
        "x=%zz&model=secret", "x=%00&model=secret", "x=%26model=secret", "model+=secret", "x=%&model=secret",
    ]  # fmt: skip
    fleet = partial(fleet_of, routes={"secret": secret})
    with shared_replicas("a") as (a,), shared(kind, fleet([a]), files={"keys": "sk-abc: acme\n"}) as gateway:
        for query in queries:
            assert gateway.get(f"/x?{query}").status in {400, 401, 503}, query
            assert gateway.get(f"/x?{query}", {"x-model": "open"}).status in {400, 503}, query
        assert a.requests == 0
        assert gateway.get("/x?x=model", {"x-model": "open"}).status == (503 if kind == "nginx" else 200)
        assert gateway.get("/x", {"x-model": "secret", "authorization": "sk-abc"}).ok

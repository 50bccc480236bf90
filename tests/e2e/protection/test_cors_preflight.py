"""CORS preflights: the proxy answers them for routes that allow an origin, since they carry no credentials."""

from __future__ import annotations

from typing import Any

from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import fleet_of
from tests.support.processes.http1 import Response
from tests.support.processes.shared import shared, shared_replicas

_ORIGIN = {"headers": {"response": {"set": {"access-control-allow-origin": "https://app.example"}}}}
_KEYED = {"auth": {"api_keys": {"file": "keys", "headers": ["authorization", "x-own-key"]}}}
_PREFLIGHT = {
    "origin": "https://app.example",
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type, x-stainless-os",
}


def _routes() -> dict[str, Any]:
    own = {"access-control-allow-origin": "*", "access-control-allow-headers": "authorization", "x-pool": "{pool}"}
    return {
        "everything": {"match": {"path_prefix": "/closed"}, "pool": "pool", **_KEYED},
        "keyed": {"match": {"path_prefix": "/keyed"}, "pool": "pool", **_KEYED, **_ORIGIN},
        "model": {"match": {"path_prefix": "/model", "methods": ["POST"], "model": ["m"]}, "pool": "pool", **_ORIGIN},
        "own": {"match": {"path": "/own"}, "pool": "pool", **_KEYED, "headers": {"response": {"set": own}}},
        "taken": {"match": {"path_prefix": "/taken"}, "pool": "pool", **_KEYED, **_ORIGIN},
        "taken-too": {
            "match": {"path_prefix": "/taken", "methods": ["OPTIONS"]},
            "respond": {"status": 200, "body": "mine"},
        },
        "open": {"match": {"path_prefix": "/open"}, "pool": "pool", **_ORIGIN},
        "local": {
            "match": {"path_prefix": "/local"},
            "pool": "pool",
            **_KEYED,
            **_ORIGIN,
            "allow_from": ["10.0.0.0/8"],
        },
    }


def test_preflight_of_a_keyed_route_is_answered_by_the_proxy(kind: Kind) -> None:
    with shared_replicas("a") as (a,):
        fleet = fleet_of([a], routes=_routes())
        with shared(kind, fleet, files={"keys": "sk-abc: acme\n"}) as gateway:

            def preflight(path: str) -> Response:
                return gateway.request("OPTIONS", path, headers=_PREFLIGHT)

            for path in ("/keyed", "/keyed/v1/chat", "/model/x"):
                answer = preflight(path)
                assert (answer.status, answer.body) == (204, b""), path
                assert answer.header_list("access-control-allow-origin") == ["https://app.example"]
                assert "POST" in (answer.header("access-control-allow-methods") or "")
                allowed = (answer.header("access-control-allow-headers") or "").split(", ")
                assert {"*", "authorization"} <= set(allowed)
                assert ("x-own-key" in allowed) == (path != "/model/x")
            answer = preflight("/own")
            assert (answer.status, answer.header("access-control-allow-headers")) == (204, "authorization")
            assert answer.header("x-pool") is None
            assert preflight("/taken").text == "mine"
            assert (preflight("/closed").status, preflight("/local").status) == (401, 403)
            assert a.requests == 0
            assert preflight("/open").replica == "a"
            for path in ("/keyed", "/own"):
                refused = gateway.post(path, b"{}", {"origin": "https://app.example"})
                assert (refused.status, bool(refused.header("access-control-allow-origin"))) == (401, True)
            passed = gateway.post("/keyed", b"{}", {"authorization": "Bearer sk-abc"})
            assert (passed.replica, passed.header("access-control-allow-origin")) == ("a", "https://app.example")
            assert a.requests == 2

"""Envoy's own responses are JSON in one format; the fleet's own responses are unchanged."""

from __future__ import annotations

from typing import Any

from tests.support.processes.fleet import entry, fleet_of, running
from tests.support.processes.http1 import Response
from tests.support.processes.replicas import replicas


def _reply_of(response: Response) -> tuple[int, str | None, Any]:
    return response.status, response.header("content-type"), response.json["error"]["type"]


def test_answers_of_envoy_have_the_common_format() -> None:
    listener = {"max_body": "1KiB", "timeouts": {"request_headers": "10s"}}
    with replicas("a", "gone", "silent", "broken") as (a, gone, silent, broken):
        gone.refuse()
        silent.held = True
        broken.behave(fault="reset")
        pools = {one.name: {"replicas": [entry(one)]} for one in (gone, silent, broken)}
        pools["drained"] = {"replicas": [entry(a, drain=True)]}
        routes: dict[str, Any] = {name: {"match": {"path": f"/{name}"}, "pool": name} for name in pools}
        routes["silent"]["timeouts"] = {"idle": "300ms"}
        routes["often"] = {"match": {"path": "/often"}, "pool": "pool", "rate_limit": [{"by": "all", "rate": "1/m"}]}
        for status in (401, 404, 503):
            answer = {"status": status, "body": f"mine {status}"}
            routes[f"said-{status}"] = {"match": {"path": f"/said-{status}"}, "respond": answer}
        fleet = fleet_of([a], route={"match": {"path": "/here"}}, listener=listener, routes=routes, pools=pools)
        with running("envoy", fleet) as gateway:
            gateway.get("/often")
            replies = {
                path: _reply_of(gateway.get(f"/{path}"))
                for path in ("gone", "drained", "silent", "broken", "often", "x")
            }
            replies["body"] = _reply_of(gateway.post("/here", b"x" * 5000))
            replies["headers"] = _reply_of(gateway.get("/here", {"x-long": "x" * 200_000}))
            replies["websocket"] = _reply_of(gateway.get("/here", {"Connection": "upgrade", "Upgrade": "websocket"}))
            said = [gateway.get(f"/said-{status}") for status in (401, 404, 503)]
            reply = gateway.grpc("/x.Y/Z")
    json_ = "application/json"
    assert replies == {
        "gone": (503, json_, "unavailable"),
        "drained": (503, json_, "unavailable"),
        "silent": (504, json_, "timeout"),
        "broken": (502, json_, "bad_gateway"),
        "often": (429, json_, "rate_limited"),
        "x": (404, json_, "not_found"),
        "body": (413, json_, "too_large"),
        "headers": (431, json_, "too_large"),
        "websocket": (403, json_, "forbidden"),
    }
    assert [(one.status, one.body, one.header("content-type")) for one in said] == [
        (status, f"mine {status}".encode(), "text/plain; charset=utf-8") for status in (401, 404, 503)
    ]
    assert reply.code == "UNIMPLEMENTED"

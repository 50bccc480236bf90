"""`allow_from` and `deny_from` refuse clients by their address, before any other check."""

from __future__ import annotations

from typing import Any

from tests.support.processes.binaries import Kind, is_rendered_for
from tests.support.processes.client import Client
from tests.support.processes.fleet import Gateway, fleet_of
from tests.support.processes.shared import shared, shared_replicas

_BALANCER = "127.0.0.2"
_LISTS: dict[str, Any] = {
    "client_address": {"trusted": [f"{_BALANCER}/32"]},
    "allow_from": ["127.0.0.0/8", "203.0.113.0/24", "2001:db8::/32"],
    "deny_from": ["203.0.113.128/25", "2001:db8:6::/48", "127.0.0.4/32"],
}


def _status(gateway: Gateway, client: str, path: str = "/", source: str = _BALANCER) -> int:
    return Client(gateway.port, source=source).get(path, {"x-forwarded-for": client} if client else {}).status


def test_client_behind_a_balancer_decides(kind: Kind) -> None:
    served = ["203.0.113.7", "2001:db8::7", "::ffff:203.0.113.7"]
    refused = [
        "203.0.113.200",
        "198.51.100.1",
        "2001:db8:6::1",
        "2001:db9::1",
        "::ffff:203.0.113.200",
        "::ffff:198.51.100.1",
        ",203.0.113.200",
        ",198.51.100.1",
        "2002:cb00:7107::1",
        "::203.0.113.7",
    ]
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a], listener=_LISTS)) as gateway:
        assert {client: _status(gateway, client) for client in served} == dict.fromkeys(served, 200)
        assert {client: _status(gateway, client) for client in refused} == dict.fromkeys(refused, 403)
        assert _status(gateway, "", source="127.0.0.3") == _status(gateway, "203.0.113.200", source="127.0.0.3") == 200
        assert _status(gateway, "203.0.113.7", source="127.0.0.4") == 403
    assert a.requests == len(served) + 2


def test_lists_of_a_route_replace_lists_of_its_listener(kind: Kind) -> None:
    routes: dict[str, Any] = {
        "own": {"match": {"path_prefix": "/own"}, "pool": "pool", "allow_from": ["198.51.100.0/24"], "deny_from": []},
        "open": {"match": {"path_prefix": "/open"}, "pool": "pool", "allow_from": ["0.0.0.0/0", "::/0"]},
        "six": {"match": {"path_prefix": "/six"}, "pool": "pool", "allow_from": ["::/0"]},
        "says": {"match": {"path": "/says"}, "respond": {"status": 200, "body": "hello"}},
        "https": {"match": {"path": "/https"}, "respond": {"redirect": "https"}},
    }
    clients = ["203.0.113.7", "203.0.113.200", "198.51.100.1", "2001:db8::7", "::ffff:192.0.2.1"]
    expected = {
        "/v1": [200, 403, 403, 200, 403],
        "/own": [403, 403, 200, 403, 403],
        "/open": [200, 403, 200, 200, 200],
        "/six": [403, 403, 403, 200, 403],
        "/says": [200, 403, 403, 200, 403],
        "/https": [301, 403, 403, 301, 403],
        "/unknown": [404, 403, 403, 404, 403],
    }
    with (
        shared_replicas("a") as (a,),
        shared(kind, fleet_of([a], listener=_LISTS, route={"match": {"path_prefix": "/v1"}}, routes=routes)) as gateway,
    ):
        assert {path: [_status(gateway, client, path) for client in clients] for path in expected} == expected
    assert a.requests == 8


def test_refusal_precedes_credentials_and_has_the_usual_form(kind: Kind) -> None:
    route = {
        "auth": {"api_keys": {"file": "keys.yaml"}},
        "headers": {"response": {"set": {"access-control-allow-origin": "*"}}},
        "deny_from": ["127.0.0.4/32"],
    }
    files = {"keys.yaml": "a-long-enough-key: gold\n"}
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a], route=route), files=files) as gateway:
        key = {"authorization": "Bearer a-long-enough-key"}
        stranger = Client(gateway.port, source="127.0.0.4")
        answers = [stranger.get("/"), stranger.get("/", key)]
        assert (Client(gateway.port).get("/").status, Client(gateway.port).get("/", key).status) == (401, 200)
        log = gateway.access_log(4)
    assert [answer.status for answer in answers] == [403, 403]
    error = {
        "error": {
            "message": "requests from this client address are not allowed",
            "type": "forbidden",
            "param": None,
            "code": "forbidden",
        }
    }
    assert [(answer.json, answer.header("content-type")) for answer in answers] == [(error, "application/json")] * 2
    assert {answer.header("access-control-allow-origin") for answer in answers} == {"*"}
    assert all(answer.header("x-request-id") for answer in answers)
    assert [(line["status"], line["tenant"], line["replica"]) for line in log[:2]] == [(403, None, None)] * 2
    assert a.requests == 1


def test_nginx_that_cannot_see_the_client_refuses_all(kind: Kind) -> None:
    """Otherwise, every client of the balancer would be accepted by the balancer's own address."""
    cannot_see = kind == "nginx" and not is_rendered_for(kind, "1.23")
    listener = {"client_address": {"trusted": [f"{_BALANCER}/32"], "header": "x-client"}, "allow_from": ["127.0.0.0/8"]}
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a], listener=listener)) as gateway:
        answers = [
            Client(gateway.port, source=_BALANCER).get("/", {"x-client": client})
            for client in ("127.0.0.9", "203.0.113.7")
        ]
        messages = gateway.messages
    assert [answer.status for answer in answers] == ([503, 503] if cannot_see else [200, 403])
    assert ("LB415" in messages) == cannot_see

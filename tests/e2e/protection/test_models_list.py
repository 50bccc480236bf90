"""The list of models requires the credentials of its route, for each kind of credentials that a proxy checks."""

from __future__ import annotations

from typing import Any

from tests.support.processes.binaries import Kind
from tests.support.processes.client import Client
from tests.support.processes.fleet import fleet_of, running
from tests.support.processes.replicas import replicas
from tests.support.processes.tokens import ISSUER, Issuer, bearer

_ISSUER = Issuer()
_JWT = {"issuer": ISSUER, "jwks_file": "jwks.json", "audiences": ["inference"]}
_KEYS = {"api_keys": {"file": "keys"}}
_FILES = {"keys": "sk-abc: acme\n", "users": "alice: sesame\n", "jwks.json": _ISSUER.jwks()}
_AUTH = {
    "keys": _KEYS,
    "basic": {"basic": {"file": "users"}},
    "token": {"jwt": _JWT},
    "either": {**_KEYS, "jwt": _JWT},
}
_VALID: list[tuple[str, dict[str, str]]] = [
    ("keys", {"authorization": "Bearer sk-abc"}),
    ("basic", {"authorization": "Basic YWxpY2U6c2VzYW1l"}),
    ("token", bearer(_ISSUER.rs256())),
    ("either", bearer(_ISSUER.rs256())),
    ("either", {"authorization": "Bearer sk-abc"}),
    ("service", {"authorization": "Bearer known"}),
]
_CLOSED = {"nginx": {"token", "either"}, "haproxy": {"service"}, "envoy": set[str]()}
"""Routes whose protection a proxy cannot express."""


def test_list_of_models_needs_the_credentials(kind: Kind) -> None:
    with replicas("a", "auth") as (a, service):
        external = {"url": f"http://{service.address}/check", "send": ["authorization"]}
        auth: dict[str, Any] = {**_AUTH, "service": {"external": external}}
        routes = {
            name: {"match": {"path": f"/{name}"}, "respond": {"models": True}, "auth": each}
            for name, each in auth.items()
        }
        routes["open"] = {"match": {"path": "/open"}, "respond": {"models": True}}
        routes["ready"] = {"match": {"path": "/ready"}, "respond": {"status": 200, "body": "ready"}, "auth": _KEYS}
        fleet = fleet_of([a], routes=routes)
        fleet["pools"]["pool"]["model"] = {"name": "llama"}
        with running(kind, fleet, files=_FILES) as gateway:
            for name, headers in _VALID:
                if name not in _CLOSED[kind]:
                    listed = gateway.get(f"/{name}", headers)
                    assert (listed.status, [item["id"] for item in listed.json["data"]]) == (200, ["llama"]), name
            service.behave(status=401)
            for name in auth:
                assert {_status(gateway, name)} == {503 if name in _CLOSED[kind] else 401}, name
            service.behave(status=403)
            assert gateway.get("/service").status == (503 if kind == "haproxy" else 403)
            assert [gateway.get(f"/{name}").status for name in ("open", "ready")] == [200, 200]
            assert a.requests == 0
    assert "LB106 routes.ready.auth" in gateway.messages
    assert "LB106 routes.keys.auth" not in gateway.messages


def _status(gateway: Client, name: str) -> int:
    """Return the status for every kind of missing and wrong credentials, which must be the same."""
    wrong = ({}, {"authorization": "Bearer sk-abd"}, {"authorization": "Basic YWxpY2U6eA=="}, bearer("e.e.e"))
    statuses = {gateway.get(f"/{name}", headers).status for headers in wrong}
    (status,) = statuses
    return status

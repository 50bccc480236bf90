"""Protected routes of Envoy: accepted credentials, headers that the replica receives, and the file with the keys."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils

from tests.support.processes.client import Headers
from tests.support.processes.fleet import Gateway, fleet_of, running
from tests.support.processes.http1 import Response
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.shared import shared, shared_replicas

_KEYS = """\
# tenants
sk-abc: acme
sk:with:colons: colon
sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08: hashed
"""
_SIGNER = ec.generate_private_key(ec.SECP256R1())
_ISSUER = "https://issuer.example.com"
_BY_KEY = {"file": "keys"}
_BY_TOKEN = {"issuer": _ISSUER, "jwks_file": "jwks.json", "audiences": ["inference"], "tenant_claim": "org"}
_DENIED = {"error": {"message": "no valid credentials", "type": "unauthorized", "param": None, "code": "unauthorized"}}


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _jwks() -> str:
    numbers = _SIGNER.public_key().public_numbers()
    x, y = (_b64(number.to_bytes(32, "big")) for number in (numbers.x, numbers.y))
    return json.dumps({"keys": [{"kty": "EC", "crv": "P-256", "alg": "ES256", "x": x, "y": y}]})


def _token(**changes: Any) -> str:
    claims = {"iss": _ISSUER, "aud": "inference", "exp": int(time.time()) + 86_400, "org": "token-org", **changes}
    parts = [{"alg": "ES256", "typ": "JWT"}, {name: value for name, value in claims.items() if value is not None}]
    text = ".".join(_b64(json.dumps(part).encode()) for part in parts)
    r, s = utils.decode_dss_signature(_SIGNER.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{text}.{_b64(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@contextmanager
def _served(
    auth: dict[str, Any], keys: str | None = _KEYS, jwks: str | None = None, *, check: bool = False, **more: Any
) -> Iterator[tuple[Replica, Gateway]]:
    """Yield a replica and a gateway. `more`: further keys of the fleet, and `route` for the protected route."""
    files = {name: text for name, text in (("keys", keys), ("jwks.json", jwks or _jwks())) if text}
    files["here"] = ""
    route = {"auth": auth, **more.pop("route", {})}
    fleet = fleet_of([], route=route, **more)
    with shared_replicas("a") as (a,):
        fleet["pools"]["pool"] = {"replicas": [{"name": "a", "address": a.address}]}
        with shared("envoy", fleet, files=files, options=["--check"] if check else []) as gateway:
            yield a, gateway


def _refused(response: Response) -> bool:
    headers = (response.header("content-type"), (response.header("www-authenticate") or "").startswith("Bearer"))
    return (response.status, *headers) == (401, "application/json", True) and response.json == _DENIED


def test_only_known_keys_are_accepted() -> None:
    with _served({"api_keys": _BY_KEY}) as (a, gateway):
        for known in ("sk-abc", "Bearer sk-abc", "bearer sk-abc", "Bearer sk:with:colons"):
            assert gateway.get(headers={"Authorization": known}).ok
        a.forget()
        unknown: list[Headers] = [
            {},
            {"Authorization": ""},
            {"Authorization": "Bearer "},
            {"Authorization": "anyone"},
            {"Authorization": "Basic sk-abc"},
            {"Authorization": "sk-ab"},
            {"Authorization": "sk-abcd"},
            {"Authorization": "test"},
            {"X-Lbctl-Internal-Anyone": "anyone"},
            {"X-Lbctl-Internal-Tenant": "acme", "X-Lbctl-Internal-Token": "x"},
            [("Authorization", "nonsense"), ("Authorization", "sk-abc")],
        ]
        for headers in unknown:
            assert _refused(gateway.get(headers=headers)), headers
        assert a.requests == 0


def test_key_in_another_header_is_valid_for_its_route() -> None:
    routes = {
        "other": {"match": {"path": "/other"}, "pool": "pool", "auth": {"api_keys": {"file": "others"}}},
        "open": {"match": {"path": "/open"}, "pool": "pool"},
        "own": {"match": {"path": "/own"}, "respond": {"status": 401, "body": "mine"}, "auth": {"api_keys": _BY_KEY}},
    }
    with _served({"api_keys": {**_BY_KEY, "header": "X-Key"}}, routes=routes) as (_, gateway):
        statuses = [
            gateway.get(path, headers).status
            for path, headers in (
                ("/", {"X-Key": "sk-abc"}),
                ("/", _bearer("sk-abc")),
                ("/other", {"X-Key": "sk-abc", **_bearer("sk-abc")}),
                ("/open", {}),
            )
        ]
        own_answer = gateway.get("/own")
    assert statuses == [200, 401, 401, 200]
    assert (own_answer.status, own_answer.body, own_answer.header("www-authenticate")) == (401, b"mine", None)


@pytest.mark.parametrize("forwarded", [False, True])
def test_replica_gets_the_tenant_and_the_key_if_forwarded(forwarded: bool) -> None:
    auth = {"api_keys": _BY_KEY, "forward_tenant": "x-tenant", "forward_credentials": forwarded}
    open_ = {"match": {"path": "/open"}, "pool": "pool"}
    with _served(auth, routes={"open": open_}) as (a, gateway):
        gateway.get(headers={**_bearer("sk-abc"), "X-Tenant": "forged"})
        gateway.get("/open", headers={"X-Tenant": "forged", **_bearer("x")})
        lines = gateway.access_log(2)
    protected, free = a.seen
    assert protected.header("x-tenant") == "acme"
    assert protected.header("authorization") == ("Bearer sk-abc" if forwarded else None)
    assert (free.header("x-tenant"), free.header("authorization")) == (None, "Bearer x")
    assert [line["tenant"] for line in lines] == ["acme", None]
    assert not [name for seen in a.seen for name, _ in seen.headers if "lbctl" in name.lower()]


def test_each_tenant_has_its_own_limit() -> None:
    with _served({"api_keys": _BY_KEY}, route={"rate_limit": [{"by": "tenant", "rate": "2/m"}]}) as (_, gateway):
        statuses = [gateway.get(headers=_bearer("sk-abc")).status for _ in range(3)]
        last = gateway.get(headers=_bearer("sk-abc"))
        other = gateway.get(headers=_bearer("sk:with:colons")).status
    assert (statuses, other) == ([200, 200, 429], 200)
    assert last.json["error"]["type"] == "rate_limited"


@pytest.mark.parametrize("auth", [{"api_keys": _BY_KEY}, {"jwt": _BY_TOKEN}, {"api_keys": _BY_KEY, "jwt": _BY_TOKEN}])
def test_envoy_without_keys_refuses_all_clients(auth: dict[str, Any]) -> None:
    with _served(auth, keys=None, jwks='{"keys": [{"kty": "unheard-of"}]}') as (a, gateway):
        assert all(_refused(gateway.get(headers=headers)) for headers in ({}, _bearer("sk-abc"), _bearer(_token())))
        assert a.requests == 0


def test_hashed_key_is_refused_with_a_warning() -> None:
    with _served({"api_keys": _BY_KEY}) as (_, gateway):
        assert _refused(gateway.get(headers=_bearer("test")))
        assert "LB443" in gateway.messages
        assert "9f86d081" not in gateway.messages


def test_keys_are_in_a_private_file() -> None:
    with _served({"api_keys": _BY_KEY}) as (_, gateway):
        files = {file.name: file for file in gateway.proxy.config.parent.iterdir()}
        assert "sk-abc" not in files["envoy.yaml"].read_text()
        assert "sk-abc" in files["envoy-listeners.yaml"].read_text()
        assert files["envoy-listeners.yaml"].stat().st_mode & 0o777 == 0o600
        assert "sk-abc" not in gateway.proxy.logs()


def test_token_is_accepted_with_its_tenant() -> None:
    with _served({"jwt": _BY_TOKEN, "forward_tenant": "x-tenant"}) as (a, gateway):
        assert gateway.get(headers=_bearer(_token())).ok
        assert gateway.get(headers={**_bearer(_token(org=None)), "x-tenant": "forged"}).ok
        assert gateway.get(headers=_bearer(_token(aud="other"))).json["error"]["type"] == "forbidden"
        for bad in ("", "x", _token(exp=1), _token(exp=None), _token(iss="https://else"), _token()[:-8] + "AAAAAAAA"):
            assert _refused(gateway.get(headers=_bearer(bad)))
        assert _refused(gateway.get(f"/?access_token={_token()}"))
        lines = gateway.access_log(2)
    assert [seen.header("x-tenant") for seen in a.seen] == ["token-org", None]
    assert [seen.header("authorization") for seen in a.seen] == [None, None]
    assert [line["tenant"] for line in lines[:2]] == ["token-org", None]


@pytest.mark.parametrize("header", ["authorization", "x-key"])
def test_key_or_token_is_sufficient(header: str) -> None:
    auth = {"api_keys": {**_BY_KEY, "header": header}, "jwt": _BY_TOKEN, "forward_tenant": "x-tenant"}
    with _served(auth, check=True, route={"rate_limit": [{"by": "all", "rate": "1000/s"}]}) as (a, gateway):
        for headers in ({header: "sk-abc"}, _bearer(_token()), _bearer(_token(org=None))):
            assert gateway.get(headers=headers).ok
        if header == "x-key":
            assert gateway.get(headers={"x-key": "nonsense", **_bearer(_token())}).ok
            assert gateway.get(headers={"x-key": "sk-abc", **_bearer("nonsense")}).ok
        wrong: list[dict[str, str]] = [{}, _bearer(_token(exp=1)), _bearer(_token(aud="other")), {header: "nonsense"}]
        wrong += [{"x-lbctl-internal-token": _ISSUER}, {"x-lbctl-internal-token": _ISSUER, header: "anyone"}]
        assert all(_refused(gateway.get(headers=headers)) for headers in wrong)
    tenants = ["acme", "token-org", None, *(["token-org", "acme"] if header == "x-key" else [])]
    assert [seen.header("x-tenant") for seen in a.seen] == tenants
    assert {seen.header(name) for seen in a.seen for name in ("authorization", "x-key")} == {None}


@pytest.mark.parametrize("auth", [{"api_keys": _BY_KEY}, {"jwt": _BY_TOKEN}])
def test_route_by_model_in_the_body_is_protected(auth: dict[str, Any]) -> None:
    body = b'{"model": "secret"}'
    route = {"match": {"path_prefix": "/", "model": ["secret"]}}
    json_ = {"Content-Type": "application/json"}
    open_ = {"match": {"path_prefix": "/"}, "pool": "pool"}
    with _served(auth, route=route, routes={"open": open_}) as (a, gateway):
        assert _refused(gateway.post("/", body, json_))
        assert gateway.post("/", b'{"model": "other"}', json_).ok
        assert gateway.post("/", body, {**json_, **_bearer("sk-abc" if "api_keys" in auth else _token())}).ok
    assert len(a.seen) == 2


def test_hash_by_a_removed_header_is_stable() -> None:
    balance = {"algorithm": "hash", "hash": {"key": {"header": "authorization"}}}
    keys = "".join(f"sk-{number}: tenant-{number}\n" for number in range(40))
    with replicas("a", "b", "c") as members:
        pool = {"balance": balance, "replicas": [{"name": one.name, "address": one.address} for one in members]}
        fleet = fleet_of(pool, route={"auth": {"api_keys": _BY_KEY}})
        with running("envoy", fleet, files={"keys": keys}) as gateway:
            rounds = [[gateway.get(headers=_bearer(f"sk-{n}")).replica for n in range(40)] for _ in range(2)]
    assert rounds[0] == rounds[1]
    assert len(set(rounds[0])) == 3
    assert {seen.header("authorization") for one in members for seen in one.seen} == {None}

"""API keys and tokens on one route: either is sufficient, and a request with neither is rejected."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import Gateway, fleet_of
from tests.support.processes.replicas import Replica
from tests.support.processes.shared import shared, shared_replicas
from tests.support.processes.tokens import ISSUER, Issuer, bearer

_CAN = pytest.mark.parametrize("kind", ["haproxy", "envoy"])
_ISSUER = Issuer()
_JWT = {"issuer": ISSUER, "jwks_file": "jwks.json", "audiences": ["inference"], "tenant_claim": "org"}
_FILES = {"keys": "sk-abc: key-tenant\n", "jwks.json": _ISSUER.jwks()}


@contextmanager
def _either(
    kind: Kind, header: str, files: dict[str, str] | None = None, **keys: Any
) -> Iterator[tuple[Gateway, Replica]]:
    auth = {"api_keys": {"file": "keys", "header": header}, "jwt": _JWT, "forward_tenant": "x-tenant"}
    with shared_replicas("a") as (a,):
        fleet = fleet_of([a], route={"auth": auth, **keys})
        with shared(kind, fleet, files=_FILES if files is None else {"here": "", **files}) as gateway:
            yield gateway, a


@_CAN
@pytest.mark.parametrize("header", ["authorization", "x-key"])
def test_key_or_token_is_sufficient(kind: Kind, header: str) -> None:
    with _either(kind, header) as (gateway, a):
        for presented in (
            {header: "sk-abc"},
            {header: "Bearer sk-abc"},
            bearer(_ISSUER.rs256()),
            bearer(_ISSUER.es256()),
        ):
            assert gateway.post("/v1/chat", b"{}", presented).ok, presented
        lines = gateway.access_log(4)
    tenants = ["key-tenant", "key-tenant", "acme", "acme"]
    assert [seen.header("x-tenant") for seen in a.seen] == tenants
    assert [line["tenant"] for line in lines] == tenants
    assert {seen.header(name) for seen in a.seen for name in ("authorization", "x-key")} == {None}


@_CAN
def test_invalid_key_or_token_does_not_spoil_the_other(kind: Kind) -> None:
    with _either(kind, "x-key") as (gateway, a):
        assert gateway.get(headers={"x-key": "nonsense", **bearer(_ISSUER.rs256())}).ok
        assert gateway.get(headers={"x-key": "", **bearer(_ISSUER.es256())}).ok
        for token in ("nonsense", "", _ISSUER.rs256(exp=1), _ISSUER.rs256(aud="other"), _ISSUER.unsigned()):
            assert gateway.get(headers={"x-key": "sk-abc", **bearer(token)}).ok, token
    assert [seen.header("x-tenant") for seen in a.seen] == ["acme"] * 2 + ["key-tenant"] * 5


@_CAN
@pytest.mark.parametrize("header", ["authorization", "x-key"])
def test_request_without_either_is_refused(kind: Kind, header: str) -> None:
    tokens = (
        "",
        "x",
        _ISSUER.rs256(exp=int(time.time()) - 60),
        _ISSUER.unsigned(),
        _ISSUER.with_public_key_as_secret(),
    )
    wrong: list[dict[str, str]] = [{}, {header: "nonsense"}, {header: "key-tenant"}, *map(bearer, tokens)]
    wrong += [{header: "nonsense", **bearer(tokens[2])}, {header: _ISSUER.rs256()} if header != "authorization" else {}]
    with _either(kind, header) as (gateway, a):
        for headers in wrong:
            answer = gateway.get(headers=headers)
            assert (answer.status, answer.header("content-type")) == (401, "application/json"), headers
            assert answer.json["error"]["type"] == "unauthorized"
        for audience in ("other", ["a", "b"]):
            assert gateway.get(headers=bearer(_ISSUER.rs256(aud=audience))).status in (401, 403)
        assert a.requests == 0


@_CAN
@pytest.mark.parametrize("absent", ["keys", "jwks.json"])
def test_one_missing_file_leaves_the_other_valid(kind: Kind, absent: str) -> None:
    files = {name: text for name, text in _FILES.items() if name != absent}
    with _either(kind, "authorization", files) as (gateway, _):
        statuses = {name: gateway.get(headers=bearer(word)).status for name, word in _words().items()}
    assert statuses == ({"key": 401, "token": 200} if absent == "keys" else {"key": 200, "token": 401})
    assert gateway.messages.count("LB503") == 1


@_CAN
def test_both_files_missing_refuses_all_clients(kind: Kind) -> None:
    with _either(kind, "authorization", {}) as (gateway, a):
        assert {gateway.get(headers=bearer(word)).status for word in ("", *_words().values())} == {401}
        assert a.requests == 0
    assert gateway.messages.count("LB503") == 2


@_CAN
def test_tenant_limit_counts_both_and_requires_a_tenant(kind: Kind) -> None:
    with _either(kind, "x-key", rate_limit=[{"by": "tenant", "rate": "2/h"}]) as (gateway, a):
        assert gateway.get(headers=bearer(_ISSUER.rs256(org=None))).status == 403
        assert a.requests == 0
        ways = [
            {"x-key": "sk-abc"},
            bearer(_ISSUER.rs256(org="key-tenant")),
            {"x-key": "sk-abc"},
            bearer(_ISSUER.rs256()),
        ]
        assert [gateway.get(headers=headers).status for headers in ways] == [200, 200, 429, 200]
        both = {"x-key": "sk-abc", **bearer(_ISSUER.rs256(org=None))}
        assert gateway.get(headers=both).status in (403, 429)


def _words() -> dict[str, str]:
    return {"key": "sk-abc", "token": _ISSUER.rs256()}

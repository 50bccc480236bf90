"""JSON Web Tokens must be signed by a key in the set, be valid now, and have the right issuer and audience.

nginx cannot verify them and closes such a route.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import Gateway, fleet_of
from tests.support.processes.http1 import Response
from tests.support.processes.replicas import Replica
from tests.support.processes.shared import shared, shared_replicas
from tests.support.processes.tokens import ISSUER, Issuer, bearer, ec_key, rsa_key, signed

_CAN = pytest.mark.parametrize("kind", ["haproxy", "envoy"])
_ISSUER = Issuer()
_FORGER = Issuer(rsa_key("forger"), ec_key("forger"))
_JWT: Mapping[str, Any] = {
    "issuer": ISSUER,
    "jwks_file": "jwks.json",
    "audiences": ["inference"],
    "tenant_claim": "org",
}


@contextmanager
def _protected(
    kind: Kind, jwt: Mapping[str, Any] = _JWT, jwks: str | None = None, **keys: Any
) -> Iterator[tuple[Gateway, Replica]]:
    """Run a gateway. `keys`: additional keys of the route and, under `auth`, of its auth."""
    route = {"auth": {"jwt": dict(jwt), "forward_tenant": "x-tenant", **keys.pop("auth", {})}, **keys}
    open_ = {"match": {"path_prefix": "/open"}, "pool": "pool"}
    files = {"here": "", **({"jwks.json": _ISSUER.jwks() if jwks is None else jwks} if jwks != "" else {})}
    more = {"route": route, "routes": {"open": open_}}
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a], **more), files=files) as gateway:
        yield gateway, a


def _assert_refused(response: Response, status: int, what: object) -> None:
    assert (response.status, response.header("content-type")) == (status, "application/json"), what
    assert response.json["error"]["type"] == {401: "unauthorized", 403: "forbidden"}[status], what
    if status == 401:
        assert (response.header("www-authenticate") or "").startswith("Bearer"), what


@_CAN
def test_valid_token_is_accepted_as_its_tenant(kind: Kind) -> None:
    with _protected(kind) as (gateway, a):
        good = (
            _ISSUER.rs256(),
            _ISSUER.es256(org="globex"),
            _ISSUER.rs256({"kid": None}),
            _ISSUER.es256(nbf=int(time.time()) - 60, extra={"nested": ["x"]}),
        )
        for token in good:
            assert gateway.post("/v1/chat", b"{}", bearer(token)).ok, token
        lines = gateway.access_log(len(good))
    assert [seen.header("x-tenant") for seen in a.seen] == ["acme", "globex", "acme", "acme"]
    assert [line["tenant"] for line in lines] == ["acme", "globex", "acme", "acme"]


@_CAN
def test_invalid_token_is_refused(kind: Kind) -> None:
    now = int(time.time())
    good = _ISSUER.rs256()
    head, claims, signature = good.split(".")
    bad = {
        "none at all": "",
        "no token": "x",
        "cut off": f"{head}.{claims}",
        "without its signature": f"{head}.{claims}.",
        "expired": _ISSUER.rs256(exp=now - 3600),
        "expired a little": _ISSUER.es256(exp=now - 10),
        "without an end": _ISSUER.rs256(exp=None),
        "an end that is not a number": _ISSUER.rs256(exp="never"),
        "not yet": _ISSUER.rs256(nbf=now + 3600),
        "alg none": _ISSUER.unsigned(),
        "alg None": _ISSUER.unsigned("None"),
        "alg none with the signature of another": _ISSUER.unsigned(signature=signature),
        "alg empty": _ISSUER.unsigned(""),
        "HS256 by the public key": _ISSUER.with_public_key_as_secret(),
        "an unknown key": _ISSUER.rs256({"kid": "r2"}),
        "the other key's id": _ISSUER.rs256({"kid": "e1"}),
        "the other key's algorithm": _ISSUER.rs256({"alg": "ES256", "kid": "e1"}),
        "another algorithm": _ISSUER.rs256({"alg": "RS512"}),
        "a forger's RSA key": _FORGER.rs256(),
        "a forger's EC key": _FORGER.es256(),
        "its own key in its header": _FORGER.es256({"jwk": {"kty": "EC"}, "jku": "http://127.0.0.1/"}),
        "other claims": f"{head}.{_ISSUER.rs256(org='root').split('.')[1]}.{signature}",
        "another issuer": _ISSUER.rs256(iss="https://issuer.example.com.evil.example"),
        "no issuer": _ISSUER.rs256(iss=None),
        **{f"an end of {value!r}": _ISSUER.rs256(exp=value) for value in (str(now + 600), -1, -now, [now + 600], True)},
        **{f"a beginning of {value!r}": _ISSUER.rs256(nbf=value) for value in ("0", str(now - 60), -5, [0], True)},
        "a beginning beyond all numbers": signed(
            {"alg": "RS256", "kid": "r1"},
            f'{{"iss": "{ISSUER}", "aud": "inference", "exp": {now + 600}, "nbf": 1e400, "org": "acme"}}',
            rsa_key("issuer"),
        ),
        "an issuer with a NUL behind it": _ISSUER.rs256(iss=f"{ISSUER}\0"),
        "an issuer with more behind a NUL": _ISSUER.es256(iss=f"{ISSUER}\0.evil.example"),
        "an issuer with a NUL that is not escaped": signed(
            {"alg": "RS256", "kid": "r1"},
            f'{{"iss": "{ISSUER}\0", "aud": "inference", "exp": {now + 600}, "org": "acme"}}',
            rsa_key("issuer"),
        ),
        "a leading dot": f".{good}",
        "a dot at the end": f"{good}.",
        "two dots": good.replace(".", "..", 1),
        "text before it": f"!!{good}",
        "text behind it": f"{good} x",
        "claims that are none": signed({"alg": "RS256", "kid": "r1"}, {}, rsa_key("issuer")),
    }
    with _protected(kind) as (gateway, a):
        for what, token in bad.items():
            _assert_refused(gateway.get(headers=bearer(token)), 401, what)
        elsewhere = [("/", {}), (f"/?access_token={good}", {}), ("/", {"cookie": f"authorization={good}"})]
        elsewhere += [("/", {"x-token": good}), ("/", {"authorization": f"Basic {good}"})]
        for path, headers in elsewhere:
            _assert_refused(gateway.get(path, headers), 401, headers)
        assert a.requests == 0
        assert gateway.get("/open").ok
        lines = gateway.access_log(len(bad) + len(elsewhere) + 1)
        assert signature not in gateway.proxy.stdout.read_text() + gateway.proxy.stderr.read_text()
    assert {line["tenant"] for line in lines} == {None}


@_CAN
def test_token_for_another_audience_is_forbidden(kind: Kind) -> None:
    jwt = {**_JWT, "audiences": ["inference", "https://batch.example.com/v1"]}
    with _protected(kind, jwt) as (gateway, a):
        for audience in ("inference", "https://batch.example.com/v1", ["inference"], ["a", "b", "inference"]):
            for make in (_ISSUER.rs256, _ISSUER.es256):
                assert gateway.get(headers=bearer(make(aud=audience))).ok, audience
        a.forget()
        for wrong in ("other", "inferenc", "inference2", ["a", "b"], ["inference,b"], "", [], None):
            refused = gateway.get(headers=bearer(_ISSUER.rs256(aud=wrong)))
            _assert_refused(refused, 403, wrong)
            assert refused.json["error"]["message"] == "this token is for another audience"
        assert a.requests == 0


@_CAN
def test_any_audience_is_accepted_by_default(kind: Kind) -> None:
    jwt = {name: value for name, value in _JWT.items() if name != "audiences"}
    with _protected(kind, jwt) as (gateway, _):
        for audience in ("other", ["a"], None):
            assert gateway.get(headers=bearer(_ISSUER.es256(aud=audience))).ok


@_CAN
def test_token_without_a_tenant_is_accepted(kind: Kind) -> None:
    with _protected(kind) as (gateway, a):
        for claims in ({"org": None}, {"org": ""}, {"org": None, "ORG": "acme"}):
            token = _ISSUER.rs256(**claims)
            assert gateway.get(headers={**bearer(token), "x-tenant": "forged"}).ok, claims
        lines = gateway.access_log(3)
    assert [seen.header("x-tenant") for seen in a.seen] == [None] * 3
    assert [line["tenant"] for line in lines] == [None] * 3


@_CAN
def test_tenant_limit_forbids_tokens_without_a_tenant(kind: Kind) -> None:
    with _protected(kind, rate_limit=[{"by": "tenant", "rate": "2/h"}]) as (gateway, a):
        for claims in ({"org": None}, {"org": ""}):
            for _ in range(3):
                refused = gateway.get(headers=bearer(_ISSUER.rs256(**claims)))
                _assert_refused(refused, 403, claims)
                assert refused.json["error"]["message"] == "the credentials do not identify a tenant"
        assert a.requests == 0
        _assert_refused(gateway.get(), 401, "no token")
        statuses = [gateway.get(headers=bearer(_ISSUER.rs256(org=org))).status for org in ("a", "a", "a", "b")]
    assert statuses == [200, 200, 429, 200]


@_CAN
def test_tenant_with_control_characters_is_forbidden(kind: Kind) -> None:
    with _protected(kind) as (gateway, a):
        for org in ("acme\n", "acme\r\nx-admin: 1", "\n", "a\x7fb", "acme\x01", "acme\0", "acme\0x"):
            _assert_refused(gateway.get(headers=bearer(_ISSUER.rs256(org=org))), 403, org)
        assert a.requests == 0
        assert gateway.get(headers=bearer(_ISSUER.rs256(org="Acme, Inc"))).ok
        assert gateway.get(headers=bearer(_ISSUER.rs256(org=None))).ok


@_CAN
@pytest.mark.parametrize("jwks", ["", '{"keys": []}'], ids=["missing", "empty"])
def test_proxy_without_keys_refuses_all_clients(kind: Kind, jwks: str) -> None:
    with _protected(kind, jwks=jwks) as (gateway, a):
        for token in (_ISSUER.rs256(), _ISSUER.unsigned(), ""):
            _assert_refused(gateway.get(headers=bearer(token)), 401, token)
        assert a.requests == 0
        assert gateway.get("/open").ok
    assert "warning LB503 routes.everything.auth.jwt.jwks_file" in gateway.messages


@pytest.mark.parametrize("also", [{}, {"api_keys": {"file": "keys"}}], ids=["alone", "beside keys"])
def test_nginx_closes_a_route_with_tokens(also: dict[str, Any]) -> None:
    with _protected("nginx", auth=also) as (gateway, a):
        for headers in ({}, bearer(_ISSUER.rs256()), bearer("sk-abc")):
            answer = gateway.get(headers=headers)
            assert (answer.status, answer.header("content-type")) == (503, "application/json")
            assert answer.json["error"]["type"] == "closed"
        assert a.requests == 0
        assert gateway.get("/open").ok
    assert "warning LB444 routes.everything.auth.jwt" in gateway.messages

"""API keys: a known key is accepted as its tenant; any other request gets a 401 and reaches no replica."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.client import Headers
from tests.support.processes.fleet import Gateway, fleet_of
from tests.support.processes.http1 import Response
from tests.support.processes.replicas import Replica
from tests.support.processes.shared import shared, shared_replicas

_HASHED = hashlib.sha256(b"sk-hashed").hexdigest()
_KEYS = f"# tenants\nsk-abc: acme\n\nsk-xyz: globex\n  sk:with:colons:  initech\nsha256:{_HASHED}: umbrella\n"
_BY_KEY: Mapping[str, Any] = {"api_keys": {"file": "keys"}}
ODD = (
    'a"b', "a'b", "a\\b", "\\", "\\n", "$host", "${x}", "$(id)", "%", "%20", "%[src]", "%REQ(:path)%", "{}", "a;b",
    "a}", "^a$", ".*", "a.c", "a|b", "a+b", "(", "[a-z]", "~a", "~*a", "default", "hostnames", "volatile", "-f", "<x>",
    "`id`", "a#b", "Bearerx", "ÿ".encode().hex(), "=" * 40, "k" * 256,
)  # fmt: skip
"""Keys with characters that have a meaning in one of the three languages, or in all."""


@contextmanager
def _protected(
    kind: Kind, auth: Mapping[str, Any] = _BY_KEY, keys: str | None = _KEYS, **sections: Any
) -> Iterator[tuple[Gateway, Replica]]:
    """Yield a gateway and its replica. With `keys` None, the key file is missing."""
    route = {"auth": dict(auth), **sections.pop("route", {})}
    files = {"here": "", **({"keys": keys} if keys is not None else {})}
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a], route=route, **sections), files=files) as gateway:
        yield gateway, a


def _assert_denied(response: Response, what: object) -> None:
    assert (response.status, response.header("content-type")) == (401, "application/json"), what
    assert response.json["error"]["type"] == "unauthorized"
    assert (response.header("www-authenticate") or "").startswith("Bearer")


def _sent(key: str) -> dict[str, str]:
    return {"Authorization": key}


def test_known_key_is_accepted_with_or_without_bearer(kind: Kind) -> None:
    with _protected(kind, {**_BY_KEY, "forward_tenant": "x-tenant"}) as (gateway, a):
        for known in ("sk-abc", "Bearer sk-abc", "bearer sk-abc", "Bearer sk-xyz", "sk:with:colons"):
            assert gateway.post("/v1/chat", b"{}", _sent(known)).ok, known
    assert [seen.header("x-tenant") for seen in a.seen] == ["acme", "acme", "acme", "globex", "initech"]


def test_unknown_credentials_are_refused(kind: Kind) -> None:
    unknown: list[Headers] = [
        {},
        _sent(""),
        _sent("Bearer"),
        _sent("Bearer "),
        _sent("sk-ab"),
        _sent("sk-abcd"),
        _sent("SK-ABC"),
        _sent("xsk-abc"),
        _sent("Bearer Bearer sk-abc"),
        _sent("Basic sk-abc"),
        _sent("sk-abc, sk-abc"),
        _sent("sk-abc acme"),
        _sent("acme"),
        _sent("#"),
        _sent("default"),
        _sent(f"sha256:{_HASHED}"),
        _sent(_HASHED),
        {"api-key": "sk-abc"},
        {"authorization": "sk-ab", "x-api-key": "sk-abc"},
        {"authorization": "Bearer ", "x-api-key": "sk-ab"},
        {"cookie": "authorization=sk-abc"},
    ]
    with _protected(kind) as (gateway, a):
        for headers in unknown:
            _assert_denied(gateway.get("/?authorization=sk-abc&key=sk-abc", headers), headers)
            _assert_denied(gateway.post("/v1/chat", b"{}", headers), headers)
        assert a.requests == 0
        lines = gateway.access_log(2 * len(unknown))
    assert {(line["status"], line["tenant"], line["replica"]) for line in lines} == {(401, None, None)}


def test_keys_with_special_characters_match_exactly(kind: Kind) -> None:
    keys = "".join(f"{key}: t{number}\n" for number, key in enumerate(ODD))
    with _protected(kind, {**_BY_KEY, "forward_tenant": "x-tenant"}, keys) as (gateway, a):
        for key in ODD:
            assert gateway.get(headers=_sent(key)).ok, key
            assert gateway.get(headers=_sent(f"Bearer {key}")).ok, key
        for other in ("abc", "a", "b", "x", "aXc", "aab", "A.C", "DEFAULT", "k" * 255, "k" * 257, "root", "{", "a c"):
            _assert_denied(gateway.get(headers=_sent(other)), other)
    assert [seen.header("x-tenant") for seen in a.seen] == [f"t{n}" for n in range(len(ODD)) for _ in range(2)]


def test_quotes_around_a_key_are_removed(kind: Kind) -> None:
    keys = "---\n\"sk-1\": acme\n'sk''2': 'globex' # since May: ours\n\"a\\\"b#c:d\": initech\n"
    with _protected(kind, {**_BY_KEY, "forward_tenant": "x-tenant"}, keys) as (gateway, a):
        for key in ("sk-1", "sk'2", 'a"b#c:d'):
            assert gateway.get(headers=_sent(f"Bearer {key}")).ok, key
        for key in ('"sk-1"', "sk''2", "'sk''2'", 'a\\"b#c:d'):
            _assert_denied(gateway.get(headers=_sent(key)), key)
    assert [seen.header("x-tenant") for seen in a.seen] == ["acme", "globex", "initech"]


@pytest.mark.parametrize("header", ["x-api-key", "Api-Key"])
def test_key_in_another_header_is_read_from_there_only(kind: Kind, header: str) -> None:
    with _protected(kind, {"api_keys": {"file": "keys", "header": header}}) as (gateway, a):
        assert gateway.get(headers={header.upper(): "sk-abc"}).ok
        assert gateway.get(headers={header: "Bearer sk-abc", "authorization": "Basic eDp5"}).ok
        _assert_denied(gateway.get(headers=_sent("sk-abc")), "in authorization")
    assert [seen.header("authorization") for seen in a.seen] == [None, "Basic eDp5"]


def test_first_header_of_a_request_holds_the_key(kind: Kind) -> None:
    with _protected(kind, {"api_keys": {"file": "keys", "headers": ["x-api-key", "authorization", "api-key"]}}) as (
        gateway,
        a,
    ):
        for sent in (
            {"x-api-key": "sk-abc"},
            {"authorization": "Bearer sk-abc"},
            {"api-key": "sk-abc"},
            {"x-api-key": "Bearer sk-abc", "authorization": "Bearer sk-wrong", "api-key": "x"},
            {"x-api-key": "", "authorization": "sk-abc"},
        ):
            assert gateway.get(headers=sent).ok, sent
        for wrong in (
            {"x-api-key": "sk-wrong", "authorization": "Bearer sk-abc"},
            {"authorization": "sk-wrong", "api-key": "sk-abc"},
            {"x-api-key": "", "authorization": "", "api-key": ""},
            {"cookie": "x-api-key=sk-abc"},
        ):
            _assert_denied(gateway.get(headers=wrong), wrong)
    assert a.requests == 5
    assert not [name for seen in a.seen for name in ("x-api-key", "authorization", "api-key") if seen.header(name)]


def test_headers_of_both_sdks_are_accepted_by_default(kind: Kind) -> None:
    with _protected(kind) as (gateway, a):
        for sent in (
            {"x-api-key": "sk-abc"},
            _sent("Bearer sk-abc"),
            {"x-api-key": "sk-abc", "authorization": "Bearer sk-abc"},
        ):
            assert gateway.get(headers=sent).ok, sent
    assert {seen.header(name) for seen in a.seen for name in ("x-api-key", "authorization")} == {None}


def test_key_is_valid_for_the_routes_of_its_file(kind: Kind) -> None:
    routes = {
        "other": {"match": {"path_prefix": "/other"}, "pool": "pool", "auth": {"api_keys": {"file": "others"}}},
        "open": {"match": {"path_prefix": "/open"}, "pool": "pool"},
    }
    with shared_replicas("a") as (a,):
        fleet = fleet_of([a], route={"auth": dict(_BY_KEY)}, routes=routes)
        with shared(kind, fleet, files={"keys": _KEYS, "others": "sk-other: other\n"}) as gateway:
            statuses = {
                (path, key): gateway.get(path, _sent(key)).status
                for path in ("/", "/other", "/open")
                for key in ("sk-abc", "sk-other", "")
            }
    assert [place for place, status in statuses.items() if status == 401] == [
        ("/", "sk-other"),
        ("/", ""),
        ("/other", "sk-abc"),
        ("/other", ""),
    ]


def test_no_spelling_of_a_path_bypasses_the_key(kind: Kind) -> None:
    open_ = {"match": {"path_prefix": "/open"}, "pool": "pool"}
    with _protected(kind, routes={"open": open_}) as (gateway, a):
        for target in ("//", "/./", "/%2e/", "/x/../", "/%41", "/?/open", "/open/..//", "/open/../x", "/open/%2e%2e/"):
            assert gateway.get(target).status in (400, 401), target
        assert a.requests == 0


def test_haproxy_accepts_a_hashed_key() -> None:
    with _protected("haproxy", {**_BY_KEY, "forward_tenant": "x-tenant"}) as (gateway, a):
        assert gateway.get(headers=_sent("Bearer sk-hashed")).ok
    assert a.seen[0].header("x-tenant") == "umbrella"
    assert "LB443" not in gateway.messages


@pytest.mark.parametrize("kind", ["nginx", "envoy"])
def test_hashed_key_is_refused_with_a_warning(kind: Kind) -> None:
    with _protected(kind) as (gateway, a):
        _assert_denied(gateway.get(headers=_sent("Bearer sk-hashed")), "hashed")
        assert a.requests == 0
        assert gateway.get(headers=_sent("sk-abc")).ok
    assert "warning LB443 routes.everything.auth.api_keys" in gateway.messages


@pytest.mark.parametrize("keys", [None, "# nobody yet\n"], ids=["missing", "empty"])
def test_proxy_without_keys_refuses_all_clients(kind: Kind, keys: str | None) -> None:
    open_ = {"match": {"path_prefix": "/open"}, "pool": "pool"}
    with _protected(kind, keys=keys, routes={"open": open_}) as (gateway, a):
        for key in ("", "Bearer ", "sk-abc", "x"):
            _assert_denied(gateway.get(headers=_sent(key)), key)
        assert a.requests == 0
        assert gateway.get("/open").ok
    assert "warning LB503 routes.everything.auth.api_keys.file" in gateway.messages

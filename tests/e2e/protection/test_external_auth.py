"""An external service decides about each request. Without its answer no request is accepted."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.client import Client
from tests.support.processes.fleet import fleet_of, running
from tests.support.processes.replicas import Seen, replicas

_FORGED = [("x-user", "root"), ("X_User", "root"), ("x-tenant", "root"), ("x-secret", "1"), ("cookie", "c=1")]


def _values(seen: Seen, name: str) -> list[str]:
    return [value for key, value in seen.headers if key.lower().replace("_", "-") == name]


def _route(address: str) -> dict[str, Any]:
    external = {
        "url": f"http://{address}/check", "timeout": "3s", "send": ["authorization"],
        "accept": ["x-user", "x-tenant"], "tenant_header": "x-tenant",
    }  # fmt: skip
    return {
        "auth": {"external": external},
        "headers": {"request": {"set": {"x-seen-tenant": "{tenant}"}}},
        "match": {"path_prefix": "/v1"},
    }


@pytest.mark.parametrize("kind", ["nginx", "envoy"])
def test_service_decides_and_no_answer_is_a_503(kind: Kind) -> None:
    with replicas("a", "auth") as (a, auth):
        by_cookie = {"external": {"url": f"http://{auth.address}/session", "send": ["cookie"]}}
        routes: dict[str, Any] = {
            "open": {"match": {"path_prefix": "/open"}, "pool": "pool"},
            "session": {"match": {"path_prefix": "/session"}, "pool": "pool", "auth": by_cookie},
        }
        with running(kind, fleet_of([a], route=_route(auth.address), routes=routes)) as gateway:
            auth.behave(headers=(("x-user", "alice"), ("x-tenant", "acme"), ("x-other", "no")))
            accepted = gateway.post("/v1/x?q=1", b"the body", [("authorization", "Bearer t"), *_FORGED])
            auth.behave(headers=())
            unnamed = gateway.get("/v1/x", _FORGED)
            open_ = gateway.get("/open", _FORGED)
            checks = auth.requests
            session = gateway.get("/session", [("cookie", "c=1"), ("authorization", "Bearer t")])
            answers = {}
            for status in (401, 403, 404, 302, 500, 503):
                auth.behave(status=status, headers=(("www-authenticate", "Basic realm=x"), ("location", "/elsewhere")))
                answers[status] = gateway.get("/v1/x")
            auth.behave(delay=30.0)
            started = time.monotonic()
            hung = gateway.get("/v1/x")
            waited = time.monotonic() - started
            auth.behave(delay=0.0, status=200, headers=())
            auth.refuse()
            gone = gateway.get("/v1/x")
            bypasses = [
                gateway.get(path).status for path in ("//v1/x", "/open/../v1/x", "/open/%2e%2e/v1/x", "/%76%31/x")
            ]
            requests = a.requests
            lines = gateway.access_log(4)
    question = auth.seen[0]
    assert question.path.partition("?")[0] == "/check"
    assert (question.header("x-original-uri"), question.header("x-original-method")) == ("/v1/x?q=1", "POST")
    assert (question.header("authorization"), _values(question, "cookie"), _values(question, "x-secret")) == (
        "Bearer t",
        [],
        [],
    )
    assert (question.body, checks) == (b"", 2)
    assert [answer.status for answer in (accepted, unnamed, open_, session)] == [200] * 4
    by_session = auth.seen[checks]
    assert (by_session.header("cookie"), by_session.header("authorization")) == ("c=1", None)
    first, second, third = (a.seen[index] for index in range(3))
    assert (first.body, first.header("authorization")) == (b"the body", None)
    names = ("x-user", "x-tenant", "x-seen-tenant", "x-original-uri", "x-original-method")
    assert [_values(first, name) for name in names] == [["alice"], ["acme"], ["acme"], [], []]
    assert [_values(seen, name) for seen in (second, third) for name in names] == [[]] * 10
    assert (_values(first, "x-other"), requests) == ([], 4)
    assert {status: answer.status for status, answer in answers.items()} == {
        401: 401, 403: 403, 404: 503, 302: 503, 500: 503, 503: 503,
    }  # fmt: skip
    assert answers[401].header_list("www-authenticate") == ["Basic realm=x"]
    if kind == "nginx":
        assert {answer.header("location") for answer in answers.values()} == {None}
    assert {answer.header("content-type") for answer in answers.values()} == {"application/json"}
    assert (hung.status, gone.status) == (503, 503)
    assert waited < 20, "the service would have answered after 30 s"
    assert not {200} & set(bypasses)
    assert [line["tenant"] for line in lines[:3]] == ["acme", None, None]


def _of_tenants(address: str, **keys: Any) -> Fleet:
    """Return routes of one service, two of which read the tenant from different headers.

    `keys`: further keys of the first one.
    """

    def route(path: str, accept: list[str], tenant_header: str | None) -> dict[str, Any]:
        external: dict[str, Any] = {"url": f"http://{address}/check", "accept": accept}
        auth: dict[str, Any] = {"external": external}
        if tenant_header is not None:
            external["tenant_header"], auth["forward_tenant"] = tenant_header, "x-tenant"
        return {"match": {"path_prefix": path}, "pool": "pool", "auth": auth}

    return {
        "one": {**route("/one", ["x-a", "x-b"], "x-a"), **keys},
        "two": route("/two", ["x-b"], "x-b"),
        "none": route("/none", ["x-a", "x-b"], None),
        "keys": {
            "match": {"path_prefix": "/keys"}, "pool": "pool",
            "auth": {"api_keys": {"file": "keys"}, "forward_tenant": "x-tenant"},
        },
    }  # fmt: skip


_KEYS = {"keys": "sk-abc: acme\n"}
_BEARER = ("authorization", "Bearer sk-abc")


@pytest.mark.parametrize("kind", ["nginx", "envoy"])
def test_only_the_header_of_the_matched_route_names_a_tenant(kind: Kind) -> None:
    forged = [("x-a", "root"), ("x-b", "root"), ("x-tenant", "root"), ("x-lbctl-internal-tenant", "root"), _BEARER]
    paths = ("/one", "/two", "/none", "/keys", "/open")
    with replicas("a", "auth") as (a, auth):
        routes = _of_tenants(auth.address)
        with running(kind, fleet_of([a], routes=routes), files=_KEYS) as gateway:
            for answered in ((("x-a", "tenant-a"), ("x-b", "tenant-b")), (("x-b", "tenant-b"),), ()):
                auth.behave(headers=answered)
                assert [gateway.get(path, forged).status for path in paths] == [200] * len(paths)
            lines = gateway.access_log(len(a.seen))
    by_key = ["acme"]
    tenants = [_values(seen, "x-tenant") for seen in a.seen]
    assert tenants[:5] == [["tenant-a"], ["tenant-b"], [], by_key, []]
    assert tenants[5:10] == [[], ["tenant-b"], [], by_key, []]
    assert tenants[10:] == [[], [], [], by_key, []]
    assert [[line["tenant"]] if line["tenant"] else [] for line in lines] == tenants


@pytest.mark.parametrize("kind", ["nginx", "envoy"])
def test_tenant_limit_counts_the_tenant_of_its_route(kind: Kind) -> None:
    with replicas("a", "auth") as (a, auth):
        routes = _of_tenants(auth.address, rate_limit=[{"by": "tenant", "rate": "1/m", "burst": 1}])
        with running(kind, fleet_of([a], routes=routes), files=_KEYS) as gateway:
            statuses = []
            for tenant in ("first", "second", "first"):
                auth.behave(headers=(("x-a", tenant), ("x-b", "same")))
                statuses.append(gateway.get("/one").status)
    assert statuses == [200, 200, 429]


def test_included_limits_do_not_replace_the_tenant_limit() -> None:
    """nginx counts a request once for each kind of limit."""
    zones = "limit_req_zone $binary_remote_addr zone=own_rate:1m rate=100r/s;\n"
    own = {"http": ["own/zones"], "server": {"gateway": ["own/limits"]}}
    files = {**_KEYS, "own/zones": zones, "own/limits": "limit_req zone=own_rate burst=100 nodelay;\n"}
    with replicas("a", "auth") as (a, auth):
        routes = _of_tenants(auth.address, rate_limit=[{"by": "tenant", "rate": "1/m", "burst": 1}])
        fleet = fleet_of([a], routes=routes, proxies={"edge": {"kind": "nginx", "include": own}})
        with running("nginx", fleet, files=files) as gateway:
            auth.behave(headers=(("x-a", "first"),))
            assert [gateway.get("/one").status for _ in range(3)] == [200, 429, 429]


def test_haproxy_closes_a_route_with_external_auth() -> None:
    with replicas("a") as (a,), running("haproxy", fleet_of([a], route=_route("127.0.0.1:1"))) as gateway:
        assert gateway.get("/v1/x").status == 503
        assert a.requests == 0
        assert "LB416" in gateway.messages


@pytest.mark.parametrize("kind", ["nginx", "envoy"])
def test_refusals_of_service_and_address_have_own_messages(kind: Kind) -> None:
    with replicas("a", "auth") as (a, auth):
        auth.behave(status=403)
        route = _route(auth.address) | {"deny_from": ["127.0.0.4/32"]}
        with running(kind, fleet_of([a], route=route)) as gateway:
            by_service = gateway.get("/v1/x")
            checks = auth.requests
            by_address = Client(gateway.port, source="127.0.0.4").get("/v1/x")
    assert (by_service.status, by_address.status, checks, auth.requests) == (403, 403, 1, 1)
    assert by_address.json["error"]["message"] == "requests from this client address are not allowed"
    assert "this address" not in str(by_service.body)

"""A route's header rules: set and remove, on the way to the replica and on the way back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.support.binaries import Kind
from tests.e2e.support.fleet import Fleet, fleet_of, running
from tests.e2e.support.replicas import Replica, Seen, replicas


def _fleet(pool: list[Replica], request: dict[str, Any] | None = None, response: dict[str, Any] | None = None) -> Fleet:
    """The rules stand at /v1/; /plain has none."""
    rules = {"request": request or {}, "response": response or {}}
    other = {"plain": {"match": {"path": "/plain"}, "pool": "pool"}}
    return fleet_of(pool, route={"match": {"path_prefix": "/v1/"}, "headers": rules}, routes=other)


def _values(seen: Seen, name: str) -> list[str]:
    return [value for key, value in seen.headers if key.lower() == name.lower()]


def test_a_request_header_is_set_whatever_the_client_sent(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, _fleet([a], {"set": {"X-Gateway": "lbctl", "x-b": "2"}})) as gateway:
        gateway.get("/v1/x")
        gateway.get("/v1/x", [("x-gateway", "mine"), ("X-GATEWAY", "mine too")])
        gateway.get("/plain", {"x-gateway": "mine"})
    assert [_values(seen, "x-gateway") for seen in a.seen] == [["lbctl"], ["lbctl"], ["mine"]]
    assert _values(a.seen[0], "x-b") == ["2"]


def test_a_request_header_is_removed_in_any_case_and_number(kind: Kind) -> None:
    sent = [("X-Internal-Debug", "1"), ("x-internal-debug", "2"), ("x-other", "stays")]
    with replicas("a") as (a,), running(kind, _fleet([a], {"remove": ["x-internal-debug"]})) as gateway:
        gateway.get("/v1/x", sent)
        gateway.get("/plain", sent[1:])
    ruled, plain = a.seen
    assert (_values(ruled, "x-internal-debug"), _values(ruled, "x-other")) == ([], ["stays"])
    assert _values(plain, "x-internal-debug") == ["2"]


def test_a_response_header_is_set_whatever_the_replica_said(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, _fleet([a], response={"set": {"x-served-by": "inference"}})) as gateway:
        a.behave(headers=(("X-Served-By", "gpu-7"), ("x-served-by", "gpu-8")))
        ruled, plain = gateway.get("/v1/x"), gateway.get("/plain")
    assert ruled.header_list("x-served-by") == ["inference"]
    assert plain.header_list("x-served-by") == ["gpu-7", "gpu-8"]


def test_a_response_header_is_removed(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, _fleet([a], response={"remove": ["X-Powered-By"]})) as gateway:
        a.behave(headers=(("x-powered-by", "uvicorn"), ("x-powered-by", "cuda"), ("x-other", "stays")))
        ruled, plain = gateway.get("/v1/x"), gateway.get("/plain")
    assert (ruled.header_list("x-powered-by"), ruled.header("x-other")) == ([], "stays")
    assert plain.header_list("x-powered-by") == ["uvicorn", "cuda"]


@pytest.mark.parametrize("status", [404, 500])
def test_answers_of_any_status_are_changed(kind: Kind, status: int) -> None:
    with replicas("a") as (a,), running(kind, _fleet([a], response={"set": {"x-served-by": "inference"}})) as gateway:
        a.behave(status=status)
        answer = gateway.get("/v1/x")
    assert (answer.status, answer.header_list("x-served-by")) == (status, ["inference"])


def test_rules_change_nothing_of_what_the_gateway_needs(kind: Kind) -> None:
    """The host, the client's address and the request's id are the gateway's, and a rule about them is obeyed."""
    rules = {"set": {"host": "models.internal"}, "remove": ["x-forwarded-for"]}
    with replicas("a") as (a,), running(kind, _fleet([a], rules)) as gateway:
        answer = gateway.get("/v1/x")
    seen = a.seen[-1]
    assert (_values(seen, "host"), _values(seen, "x-forwarded-for")) == (["models.internal"], [])
    assert _values(seen, "x-request-id") == [answer.header("x-request-id")]


def test_a_server_header_is_removed_where_the_proxy_can(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, _fleet([a], response={"remove": ["server"]})) as gateway:
        answer = gateway.get("/v1/x")
        assert ("warning LB445" in gateway.messages) == (kind == "nginx")
    assert answer.header_list("server") == (["nginx"] if kind == "nginx" else [])

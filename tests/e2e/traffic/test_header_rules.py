"""Header rules of a route set and remove headers of requests and responses."""

from __future__ import annotations

from typing import Any

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import bind, fleet_of, running
from tests.support.processes.replicas import Replica, Seen, replicas


def _fleet(pool: list[Replica], request: dict[str, Any] | None = None, response: dict[str, Any] | None = None) -> Fleet:
    """Return a fleet with these rules for /v1/ and none for /plain."""
    rules = {"request": request or {}, "response": response or {}}
    other = {"plain": {"match": {"path": "/plain"}, "pool": "pool"}}
    return fleet_of(pool, route={"match": {"path_prefix": "/v1/"}, "headers": rules}, routes=other)


def _values(seen: Seen, name: str) -> list[str]:
    return [value for key, value in seen.headers if key.lower() == name.lower()]


def test_request_header_is_set(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, _fleet([a], {"set": {"X-Gateway": "lbctl", "x-b": "2"}})) as gateway:
        gateway.get("/v1/x")
        gateway.get("/v1/x", [("x-gateway", "mine"), ("X-GATEWAY", "mine too")])
        gateway.get("/plain", {"x-gateway": "mine"})
    assert [_values(seen, "x-gateway") for seen in a.seen] == [["lbctl"], ["lbctl"], ["mine"]]
    assert _values(a.seen[0], "x-b") == ["2"]


def test_request_header_is_removed_in_any_case_and_number(kind: Kind) -> None:
    sent = [("X-Internal-Debug", "1"), ("x-internal-debug", "2"), ("x-other", "stays")]
    with replicas("a") as (a,), running(kind, _fleet([a], {"remove": ["x-internal-debug"]})) as gateway:
        gateway.get("/v1/x", sent)
        gateway.get("/plain", sent[1:])
    ruled, plain = a.seen
    assert (_values(ruled, "x-internal-debug"), _values(ruled, "x-other")) == ([], ["stays"])
    assert _values(plain, "x-internal-debug") == ["2"]


def test_response_header_is_set(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, _fleet([a], response={"set": {"x-served-by": "inference"}})) as gateway:
        a.behave(headers=(("X-Served-By", "gpu-7"), ("x-served-by", "gpu-8")))
        ruled, plain = gateway.get("/v1/x"), gateway.get("/plain")
    assert ruled.header_list("x-served-by") == ["inference"]
    assert plain.header_list("x-served-by") == ["gpu-7", "gpu-8"]


def test_response_header_is_removed(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, _fleet([a], response={"remove": ["X-Powered-By"]})) as gateway:
        a.behave(headers=(("x-powered-by", "uvicorn"), ("x-powered-by", "cuda"), ("x-other", "stays")))
        ruled, plain = gateway.get("/v1/x"), gateway.get("/plain")
    assert (ruled.header_list("x-powered-by"), ruled.header("x-other")) == ([], "stays")
    assert plain.header_list("x-powered-by") == ["uvicorn", "cuda"]


def test_response_header_rules_apply_to_any_status(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, _fleet([a], response={"set": {"x-served-by": "inference"}})) as gateway:
        for status in (404, 500):
            a.behave(status=status)
            answer = gateway.get("/v1/x")
            assert (answer.status, answer.header_list("x-served-by")) == (status, ["inference"])


def test_rules_keep_the_headers_of_the_gateway(kind: Kind) -> None:
    """Rules may change the host and the address of the client, but not the request id."""
    rules = {"set": {"host": "models.internal"}, "remove": ["x-forwarded-for"]}
    with replicas("a") as (a,), running(kind, _fleet([a], rules)) as gateway:
        answer = gateway.get("/v1/x")
    seen = a.seen[-1]
    assert (_values(seen, "host"), _values(seen, "x-forwarded-for")) == (["models.internal"], [])
    assert _values(seen, "x-request-id") == [answer.header("x-request-id")]


def test_server_header_is_removed_if_supported(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, _fleet([a], response={"remove": ["server"]})) as gateway:
        answer = gateway.get("/v1/x")
        assert ("warning LB445" in gateway.messages) == (kind == "nginx")
    assert answer.header_list("server") == (["nginx"] if kind == "nginx" else [])


_CORS = {"access-control-allow-origin": "https://chat.example.com", "x-price": "5$"}


def _refusing(pool: list[Replica]) -> Fleet:
    """Return routes whose requests the proxy rejects: no key, above a limit, no replica, after a timeout."""
    headers = {"response": {"set": _CORS}}
    nobody = {"replicas": [{"name": "nobody", "address": bind()}]}
    routes: dict[str, dict[str, Any]] = {
        "401": {"pool": "pool", "auth": {"api_keys": {"file": "keys"}}},
        "429": {"pool": "pool", "rate_limit": [{"by": "all", "rate": "1/m"}]},
        "503": {"pool": "nobody"},
        "504": {"pool": "pool", "timeouts": {"idle": "300ms"}},
    }
    routes = {name: {"match": {"path": f"/{name}"}, "headers": headers, **keys} for name, keys in routes.items()}
    return fleet_of(pool, routes=routes, pools={"nobody": nobody})


def test_answers_of_the_proxy_have_the_route_headers(kind: Kind) -> None:
    """Without them a browser shows a CORS error instead of the status."""
    files = {"keys": "sk-0123456789abcdef: alice\n"}
    with replicas("a") as (a,), running(kind, _refusing([a]), files=files) as gateway:
        assert gateway.get("/429").ok
        a.held = True
        answers = {status: gateway.get(f"/{status}") for status in (401, 429, 503, 504)}
        a.held = False
        plain = gateway.get("/")
    assert {status: answer.status for status, answer in answers.items()} == {status: status for status in answers}
    for answer in answers.values():
        assert {name: answer.header_list(name) for name in _CORS} == {name: [text] for name, text in _CORS.items()}
        assert len(answer.header_list("x-request-id")) == 1
        assert answer.header_list("content-type") == ["application/json"]
    assert (plain.status, plain.header("x-price")) == (200, None)

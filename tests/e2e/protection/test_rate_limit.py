"""Rate limits: requests beyond the limit get a 429 with the time to retry after, and other clients are unaffected.

Each test has a route with its own limits, at a path of its name, in one running proxy of each kind. Rates are per
minute, so that nothing is refilled while a test runs, except where a test is about refills.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import KINDS, Kind
from tests.support.processes.client import Client
from tests.support.processes.fleet import Gateway, bind, fleet_of, pool_of, running
from tests.support.processes.http1 import Request, Response
from tests.support.processes.replicas import replicas
from tests.support.processes.shared import SharedGateway
from tests.support.processes.waiting import eventually

_KEYS = "sk-a1: acme\nsk-a2: acme\nsk-g: globex\nsk-d: default\n"
_AUTH = {"auth": {"api_keys": {"file": "keys", "header": "x-key"}}}
_HEADER = {"header": "x-user"}
_TENANTS = {"acme": "3/m", "initech": "1/m", "default": "2/m", "include": "1/m"}
_BALANCER = "127.0.0.9"


def _limit(rate: str, by: Any = "all", **keys: Any) -> dict[str, Any]:
    return {"by": by, "rate": rate, **keys}


_LIMITS: dict[str, list[dict[str, Any]]] = {
    "free": [],
    "burst": [_limit("1/m", burst=4)],
    "no-burst": [_limit("2/m")],
    "slow": [_limit("1/m", burst=1)],
    "quick": [_limit("60/m", burst=1)],
    "fast": [_limit("20/s", burst=20)],
    "retry": [_limit("2/s")],
    "two-seconds": [_limit("30/m", burst=1)],
    "slower-of-two": [_limit(rate, burst=1) for rate in ("90/m", "7/m")],
    "half-second": [_limit("120/m", burst=1)],
    "hourly": [_limit("3/h")],
    "client": [_limit("2/m", "client_ip")],
    "balanced-client": [_limit("2/m", "client_ip")],
    "header": [_limit("2/m", _HEADER)],
    "many-headers": [_limit("1/m", _HEADER)],
    "tenant": [_limit("3/m", "tenant")],
    "own-rates": [_limit("1/m", "tenant", tenants=_TENANTS)],
    "several": [_limit("2/m", "tenant"), _limit("3/m")],
    "keyed": [_limit("2/m")],
    "one-route": [_limit("2/m")],
    "other-route": [_limit("1/m")],
    "two-listeners": [_limit("2/m")],
    "matches": [_limit("3/m")],
}
"""Maps a route to its limits."""
_WITH_KEYS = ("tenant", "own-rates", "several", "keyed")
_MATCHES = {
    "match": {"path_prefix": "/matches", "hosts": ["one.example.com", "two.example.com"]},
    "pin": [{"header": "x-other", "equals": "1", "pool": "other"}],
}


def _routes(limits: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    routes: dict[str, Any] = {
        name: {"match": {"path_prefix": f"/{name}"}, "pool": "pool", **({"rate_limit": items} if items else {})}
        for name, items in limits.items()
    }
    for name in _WITH_KEYS:
        if name in routes:
            routes[name] |= _AUTH
    return routes


def _statuses(client: Client, path: str, count: int, headers: Sequence[tuple[str, str]] = ()) -> list[int]:
    return [client.get(path, headers).status for _ in range(count)]


def _refused(client: Client, path: str) -> Response:
    """Return a 429 for one of many concurrent requests, of which not all can have passed."""
    refusals: list[Response] = []

    def any_refused() -> bool:
        load = client.load(20, 10, Request(path=path))
        refusals.extend(answer for answer in load.responses if answer.status == 429)
        return bool(refusals)

    eventually(any_refused)
    return refusals[0]


def _assert_refused(response: Response) -> None:
    assert (response.status, response.header("content-type")) == (429, "application/json")
    assert response.json["error"]["type"] == "rate_limited"
    assert int(response.header("retry-after") or 0) >= 1


@pytest.fixture(scope="module", params=KINDS)
def limited(request: pytest.FixtureRequest) -> Iterator[Gateway]:
    """Run a proxy with a route for each of `_LIMITS`, two listeners, and a trusted balancer."""
    with replicas("a", "b") as (a, b):
        routes = _routes(_LIMITS)
        routes["matches"] |= _MATCHES
        fleet = fleet_of(
            [a],
            listener={"client_address": {"trusted": [f"{_BALANCER}/32"]}},
            listeners={"second": {"bind": bind()}},
            routes=routes,
            pools={"other": pool_of([b])},
        )
        with running(request.param, fleet, files={"keys": _KEYS}) as gateway:
            yield gateway


@pytest.fixture
def gateway(limited: Gateway) -> Gateway:
    return SharedGateway(limited)


@pytest.fixture
def kind(limited: Gateway, request: pytest.FixtureRequest) -> Kind:
    """Return the kind of the running proxy."""
    running_kind: Kind = request.node.callspec.params["limited"]
    return running_kind


def test_limit_for_all_passes_its_burst_only(gateway: Gateway) -> None:
    answers = [gateway.get("/burst", {"x-user": str(number)}) for number in range(4)]
    assert [answer.status for answer in answers] == [200] * 4
    others = [Client(gateway.port, source=f"127.0.0.{last}") for last in (1, 2, 3)]
    for client in others:
        _assert_refused(client.post("/burst/v1/chat", b"{}", {"x-user": f"u{client.port}"}))
    lines = gateway.access_log(7)
    assert sorted((line["status"], line["route"]) for line in lines) == [(200, "burst")] * 4 + [(429, "burst")] * 3
    assert {line["replica"] for line in lines if line["status"] == 429} == {None}


def test_burst_is_the_rate_by_default(gateway: Gateway) -> None:
    assert _statuses(gateway, "/no-burst", 5) == [200] * 2 + [429] * 3


def test_rates_refill_over_time(gateway: Gateway) -> None:
    """After three seconds, a request passes again at 60/m, and none at 1/m. At 20/s, a load of four times that rate
    passes at 20/s in the long run, after a burst of twenty."""
    assert _statuses(gateway, "/slow", 2) == [200, 429]
    assert gateway.get("/quick").status == 200
    _refused(gateway, "/quick")
    refused = time.monotonic()
    load = gateway.load(160, 4, Request(path="/fast"), gap=0.05)
    time.sleep(max(0.0, refused + 3 - time.monotonic()))
    assert [gateway.get(path).status for path in ("/slow", "/quick")] == [429, 200]
    passed, ideal = load.statuses[200], 20 * load.seconds
    assert load.statuses.total() == passed + load.statuses[429]
    assert 30 <= passed <= 20 + 1.1 * ideal + 2


def test_request_after_retry_after_is_served(gateway: Gateway) -> None:
    assert int(_refused(gateway, "/retry").header("retry-after") or 0) == 1
    eventually(lambda: gateway.get("/retry").ok, pause=1.0)


def test_retry_after_of_a_slow_rate(gateway: Gateway, kind: Kind) -> None:
    """A limit of one request in two seconds, the slower of two limits, and a fast limit.

    HAProxy returns at least one second.
    """
    paths = ("/two-seconds", "/slower-of-two", "/half-second")
    delays = [_refused(gateway, path).header_list("retry-after") for path in paths]
    if kind == "haproxy":
        assert min(int(delay) for (delay,) in delays) >= 1
    else:
        assert delays == [["2"], ["9"], ["1"]]


def test_rate_below_one_a_minute(gateway: Gateway, kind: Kind) -> None:
    """nginx counts whole requests a minute, and closes a route with a lower rate."""
    if kind != "nginx":
        assert _statuses(gateway, "/hourly", 5) == [200, 200, 200, 429, 429]
        return
    answer = gateway.get("/hourly")
    assert (answer.status, answer.replica, answer.json["error"]["type"]) == (503, None, "closed")
    assert gateway.get("/free").ok
    assert "warning LB441 routes.hourly.rate_limit" in gateway.messages


def test_each_client_has_a_limit_and_cannot_forge_others(gateway: Gateway) -> None:
    one, two = (Client(gateway.port, source=source) for source in ("127.0.0.2", "127.0.0.3"))
    assert _statuses(one, "/client", 3) == [200, 200, 429]
    forged = [[("x-forwarded-for", f"10.0.0.{n}"), ("x-real-ip", f"10.0.0.{n}")] for n in range(3)]
    assert [one.get("/client", headers).status for headers in forged] == [429] * 3
    assert _statuses(two, "/client", 3) == [200, 200, 429]


def test_trusted_balancer_names_the_limited_client(gateway: Gateway) -> None:
    balancer, stranger = (Client(gateway.port, source=source) for source in (_BALANCER, "127.0.0.8"))
    for client in ("203.0.113.1", "203.0.113.2"):
        assert _statuses(balancer, "/balanced-client", 3, [("x-forwarded-for", client)]) == [200, 200, 429]
    forged = [[("x-forwarded-for", f"203.0.113.{n}")] for n in (7, 8, 9)]
    assert [stranger.get("/balanced-client", headers).status for headers in forged] == [200, 200, 429]


def test_each_header_value_has_its_own_limit(gateway: Gateway) -> None:
    for user in ("ann", "bob", "Ann", "an", 'a"; $x %'):
        assert _statuses(gateway, "/header", 3, [("x-user", user)]) == [200, 200, 429]
    assert _statuses(gateway, "/header", 3) == [200, 200, 429]
    assert _statuses(gateway, "/header", 1, [("X-User", "ann")]) == [429]
    assert _statuses(gateway, "/header", 4, [("x-user", "")])[2:] == [429, 429]


def test_many_header_values_do_not_reset_a_count(gateway: Gateway) -> None:
    assert _statuses(gateway, "/many-headers", 2, [("x-user", "ann")]) == [200, 429]
    others = gateway.load(120, 30, lambda number: Request(path="/many-headers", headers={"x-user": f"u{number}"}))
    assert others.statuses == {200: 120}
    assert _statuses(gateway, "/many-headers", 1, [("x-user", "ann")]) == [429]


def test_tenant_has_one_limit_for_all_its_keys(gateway: Gateway) -> None:
    keys = ("sk-a1", "sk-a2", "sk-a1", "sk-a2", "sk-a1", "sk-g")
    answers = [gateway.get("/tenant", {"x-key": key}) for key in keys]
    assert [answer.status for answer in answers] == [200, 200, 200, 429, 429, 200]
    _assert_refused(answers[3])
    assert [line["tenant"] for line in gateway.access_log(6)] == ["acme"] * 5 + ["globex"]


def test_tenant_may_have_its_own_rate(gateway: Gateway) -> None:
    keys = {"sk-a1": 2, "sk-a2": 3, "sk-g": 2, "sk-d": 4}
    passed = {key: _statuses(gateway, "/own-rates", count, [("x-key", key)]).count(200) for key, count in keys.items()}
    assert passed == {"sk-a1": 2, "sk-a2": 1, "sk-g": 1, "sk-d": 2}


def test_each_of_several_limits_holds(gateway: Gateway) -> None:
    assert _statuses(gateway, "/several", 2, [("x-key", "sk-g")]) == [200, 200]
    assert _statuses(gateway, "/several", 1, [("x-key", "sk-g")]) == [429]
    assert _statuses(gateway, "/several", 2, [("x-key", "sk-a1")]) == [200, 429]


def test_refused_clients_do_not_count(gateway: Gateway) -> None:
    assert _statuses(gateway, "/keyed", 5, [("x-key", "wrong")]) == [401] * 5
    assert _statuses(gateway, "/keyed", 3, [("x-key", "sk-g")]) == [200, 200, 429]


def test_limit_applies_to_its_route_only(gateway: Gateway) -> None:
    assert _statuses(gateway, "/one-route", 3) == [200, 200, 429]
    assert _statuses(gateway, "/other-route", 2) == [200, 429]
    assert _statuses(gateway, "/free", 4) == [200] * 4


def test_route_on_two_listeners_has_one_limit(gateway: Gateway, kind: Kind) -> None:
    """Envoy counts per listener, and lbctl warns about it."""
    assert _statuses(gateway, "/two-listeners", 2) == [200, 200]
    expected = [200, 200, 429] if kind == "envoy" else [429] * 3
    assert _statuses(gateway.connect("second"), "/two-listeners", 3) == expected
    assert ("Envoy counts requests separately for each listener" in gateway.messages) == (kind == "envoy")


def test_route_with_several_matches_has_one_limit(gateway: Gateway) -> None:
    """Each host and each pool may be a separate rule for the proxy."""
    pairs = [("one", "0"), ("two", "0"), ("one", "1"), ("two", "1"), ("one", "0")]
    requests = [{"host": f"{host}.example.com", "x-other": other} for host, other in pairs]
    answers = [gateway.get("/matches", headers) for headers in requests]
    assert [answer.status for answer in answers] == [200, 200, 200, 429, 429]
    assert [answer.replica for answer in answers[:3]] == ["a", "a", "b"]


def _fleet_of_instances(kind: Kind, instances: int, members: Sequence[Any]) -> Fleet:
    proxy = {"kind": kind, "instances": instances, **({"admin": bind()} if kind == "envoy" else {})}
    routes = _routes({"rate": [_limit("4/m")], "with-burst": [_limit("2/m", burst=9)]})
    return fleet_of(members, routes=routes, proxies={"edge": proxy})


@pytest.mark.parametrize(("instances", "passed"), [(1, (4, 8)), (2, (2, 5))])
@pytest.mark.parametrize("proxy_kind", KINDS)
def test_limit_and_burst_are_divided_among_proxies(proxy_kind: Kind, instances: int, passed: tuple[int, int]) -> None:
    with replicas("a") as members, running(proxy_kind, _fleet_of_instances(proxy_kind, instances, members)) as gateway:
        served = [_statuses(gateway, path, 8).count(200) for path in ("/rate", "/with-burst")]
    assert tuple(served) == passed

"""Rate limits: requests beyond the limit get a 429 with the time to retry after, and other clients are unaffected.

Rates are per minute, so that nothing is refilled while a test runs, except where a test is about refills.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.client import Client
from tests.support.processes.fleet import Gateway, bind, fleet_of, pool_of, running
from tests.support.processes.http1 import Request, Response
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_KEYS = "sk-a1: acme\nsk-a2: acme\nsk-g: globex\nsk-d: default\n"
_AUTH = {"api_keys": {"file": "keys", "header": "x-key"}}


@contextmanager
def _limited(kind: Kind, *limits: dict[str, Any], **sections: Any) -> Iterator[tuple[Gateway, Replica]]:
    """`sections`: of the fleet; `route` and `listener` add to those two."""
    route = {"rate_limit": list(limits), **sections.pop("route", {})}
    files = {"keys": _KEYS}
    with replicas("a") as (a,), running(kind, fleet_of([a], route=route, **sections), files=files) as gateway:
        yield gateway, a


def _statuses(client: Client, count: int, headers: Sequence[tuple[str, str]] = ()) -> list[int]:
    return [client.get(headers=headers).status for _ in range(count)]


def _refused(client: Client, path: str) -> Response:
    """Return a 429 for one of many requests at once, of which not all can have passed."""
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


def test_limit_for_all_passes_its_burst_only(kind: Kind) -> None:
    with _limited(kind, {"by": "all", "rate": "1/m", "burst": 4}) as (gateway, a):
        for number in range(4):
            assert gateway.get(headers={"x-user": str(number)}).ok
        others = [Client(gateway.port, source=f"127.0.0.{last}") for last in (1, 2, 3)]
        for client in others:
            _assert_refused(client.post("/v1/chat", b"{}", {"x-user": f"u{client.port}"}))
        assert a.requests == 4
        lines = gateway.access_log(7)
    assert (
        sorted((line["status"], line["route"]) for line in lines)
        == [(200, "everything")] * 4 + [(429, "everything")] * 3
    )


def test_burst_is_the_rate_by_default(kind: Kind) -> None:
    with _limited(kind, {"by": "all", "rate": "2/m"}) as (gateway, _):
        assert _statuses(gateway, 5) == [200] * 2 + [429] * 3


def test_rates_refill_over_time(kind: Kind) -> None:
    """After three seconds, a request passes again at 60/m, and none at 1/m. At 20/s, a load of four times that rate
    passes at 20/s in the long run, after a burst of twenty."""
    routes = {
        name: {"match": {"path": f"/{name}"}, "pool": "pool", "rate_limit": [{"by": "all", **limit}]}
        for name, limit in (("quick", {"rate": "60/m", "burst": 1}), ("fast", {"rate": "20/s", "burst": 20}))
    }
    with _limited(kind, {"by": "all", "rate": "1/m", "burst": 1}, routes=routes) as (gateway, _):
        assert [gateway.get().status for _ in range(2)] == [200, 429]
        assert gateway.get("/quick").status == 200
        _refused(gateway, "/quick")
        refused = time.monotonic()
        load = gateway.load(160, 4, Request(path="/fast"), gap=0.05)
        time.sleep(max(0.0, refused + 3 - time.monotonic()))
        assert [gateway.get(path).status for path in ("/", "/quick")] == [429, 200]
    passed, ideal = load.statuses[200], 20 * load.seconds
    assert load.statuses.total() == passed + load.statuses[429]
    assert 30 <= passed <= 20 + 1.1 * ideal + 2


def test_request_after_retry_after_is_served(kind: Kind) -> None:
    with _limited(kind, {"by": "all", "rate": "2/s"}) as (gateway, _):
        assert int(_refused(gateway, "/").header("retry-after") or 0) == 1
        eventually(lambda: gateway.get().ok, pause=1.0)


@pytest.mark.parametrize("kind", ["nginx", "envoy"])
def test_retry_after_of_a_slow_rate(kind: Kind) -> None:
    """One request in two seconds; the slower of two limits; a quick limit next to them."""
    slower = {"match": {"path": "/slower"}, "pool": "pool"}
    quick = {"match": {"path": "/quick"}, "pool": "pool", "rate_limit": [{"by": "all", "rate": "120/m", "burst": 1}]}
    rates = [{"by": "all", "rate": rate, "burst": 1} for rate in ("90/m", "7/m")]
    more = {"slower": {**slower, "rate_limit": rates}, "quick": quick}
    with _limited(kind, {"by": "all", "rate": "30/m", "burst": 1}, routes=more) as (gateway, _):
        delays = [_refused(gateway, path).header_list("retry-after") for path in ("/", "/slower", "/quick")]
    assert delays == [["2"], ["9"], ["1"]]


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
def test_rate_per_hour(kind: Kind) -> None:
    with _limited(kind, {"by": "all", "rate": "3/h"}) as (gateway, _):
        assert _statuses(gateway, 5) == [200, 200, 200, 429, 429]


def test_nginx_closes_a_route_below_one_request_a_minute() -> None:
    free = {"match": {"path_prefix": "/free"}, "pool": "pool"}
    with _limited("nginx", {"by": "all", "rate": "30/h"}, routes={"free": free}) as (gateway, a):
        answer = gateway.get()
        assert gateway.get("/free").ok
        assert a.requests == 1
    assert (answer.status, answer.json["error"]["type"]) == (503, "closed")
    assert "warning LB441 routes.everything.rate_limit" in gateway.messages


def test_each_client_has_a_limit_and_cannot_forge_others(kind: Kind) -> None:
    with _limited(kind, {"by": "client_ip", "rate": "2/m"}) as (gateway, _):
        one, two = (Client(gateway.port, source=source) for source in ("127.0.0.2", "127.0.0.3"))
        assert _statuses(one, 3) == [200, 200, 429]
        forged = [[("x-forwarded-for", f"10.0.0.{n}"), ("x-real-ip", f"10.0.0.{n}")] for n in range(3)]
        assert [one.get(headers=headers).status for headers in forged] == [429] * 3
        assert _statuses(two, 3) == [200, 200, 429]


def test_trusted_balancer_names_the_limited_client(kind: Kind) -> None:
    trusting = {"client_address": {"trusted": ["127.0.0.9/32"]}}
    with _limited(kind, {"by": "client_ip", "rate": "2/m"}, listener=trusting) as (gateway, _):
        balancer, stranger = (Client(gateway.port, source=source) for source in ("127.0.0.9", "127.0.0.8"))
        for client in ("203.0.113.1", "203.0.113.2"):
            assert _statuses(balancer, 3, [("x-forwarded-for", client)]) == [200, 200, 429]
        forged = [stranger.get(headers={"x-forwarded-for": f"203.0.113.{n}"}).status for n in (7, 8, 9)]
    assert forged == [200, 200, 429]


def test_each_header_value_has_its_own_limit(kind: Kind) -> None:
    with _limited(kind, {"by": {"header": "x-user"}, "rate": "2/m"}) as (gateway, _):
        for user in ("ann", "bob", "Ann", "an", 'a"; $x %'):
            assert _statuses(gateway, 3, [("x-user", user)]) == [200, 200, 429]
        assert _statuses(gateway, 3) == [200, 200, 429]
        assert _statuses(gateway, 1, [("X-User", "ann")]) == [429]
        assert _statuses(gateway, 4, [("x-user", "")])[2:] == [429, 429]


def test_many_header_values_do_not_reset_a_count(kind: Kind) -> None:
    with _limited(kind, {"by": {"header": "x-user"}, "rate": "1/m"}) as (gateway, _):
        assert _statuses(gateway, 2, [("x-user", "ann")]) == [200, 429]
        others = gateway.load(120, 30, lambda number: Request(headers={"x-user": f"u{number}"}))
        assert others.statuses == {200: 120}
        assert _statuses(gateway, 1, [("x-user", "ann")]) == [429]


def test_tenant_has_one_limit_for_all_its_keys(kind: Kind) -> None:
    with _limited(kind, {"by": "tenant", "rate": "3/m"}, route={"auth": _AUTH}) as (gateway, _):
        keys = ("sk-a1", "sk-a2", "sk-a1", "sk-a2", "sk-a1", "sk-g")
        answers = [gateway.get(headers={"x-key": key}) for key in keys]
        lines = gateway.access_log(6)
    assert [answer.status for answer in answers] == [200, 200, 200, 429, 429, 200]
    _assert_refused(answers[3])
    assert [line["tenant"] for line in lines] == ["acme"] * 5 + ["globex"]


def test_each_of_several_limits_holds(kind: Kind) -> None:
    limits = [{"by": "tenant", "rate": "2/m"}, {"by": "all", "rate": "3/m"}]
    with _limited(kind, *limits, route={"auth": _AUTH}) as (gateway, _):
        assert _statuses(gateway, 2, [("x-key", "sk-g")]) == [200, 200]
        assert _statuses(gateway, 1, [("x-key", "sk-g")]) == [429]
        assert _statuses(gateway, 2, [("x-key", "sk-a1")]) == [200, 429]


def test_refused_clients_do_not_count(kind: Kind) -> None:
    with _limited(kind, {"by": "all", "rate": "2/m"}, route={"auth": _AUTH}) as (gateway, _):
        assert _statuses(gateway, 5, [("x-key", "wrong")]) == [401] * 5
        assert _statuses(gateway, 3, [("x-key", "sk-g")]) == [200, 200, 429]


def test_limit_applies_to_its_route_only(kind: Kind) -> None:
    other = {"match": {"path_prefix": "/other"}, "pool": "pool", "rate_limit": [{"by": "all", "rate": "1/m"}]}
    free = {"match": {"path_prefix": "/free"}, "pool": "pool"}
    with _limited(kind, {"by": "all", "rate": "2/m"}, routes={"other": other, "free": free}) as (gateway, _):
        assert [gateway.get("/").status for _ in range(3)] == [200, 200, 429]
        assert [gateway.get("/other").status for _ in range(2)] == [200, 429]
        assert [gateway.get("/free").status for _ in range(4)] == [200] * 4


@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
def test_route_on_two_listeners_has_one_limit(kind: Kind) -> None:
    second = {"second": {"bind": bind()}}
    with _limited(kind, {"by": "all", "rate": "2/m"}, listeners=second) as (gateway, _):
        assert _statuses(gateway, 2) == [200, 200]
        assert _statuses(gateway.connect("second"), 2) == [429, 429]


def test_envoy_warns_that_it_counts_by_listener() -> None:
    second = {"second": {"bind": bind()}}
    with _limited("envoy", {"by": "all", "rate": "2/m"}, listeners=second) as (gateway, _):
        for client in (gateway, gateway.connect("second")):
            assert _statuses(client, 3) == [200, 200, 429]
    assert "LB441 routes.everything.rate_limit" in gateway.messages


def test_route_with_several_matches_has_one_limit(kind: Kind) -> None:
    """Each host and each pool may be a rule of its own for the proxy."""
    with replicas("a", "b") as (a, b):
        pools = {"pool": pool_of([a]), "other": pool_of([b]), "third": pool_of([b])}
        route = {
            "match": {"hosts": ["one.example.com", "two.example.com"]},
            "pin": [{"header": "x-other", "equals": "1", "pool": "other"}],
            "rate_limit": [{"by": "all", "rate": "3/m"}],
        }
        with running(kind, fleet_of(pools["pool"], route=route, pools=pools)) as gateway:
            ways = [("one", "0"), ("two", "0"), ("one", "1"), ("two", "1"), ("one", "0")]
            answers = [gateway.get(headers={"host": f"{host}.example.com", "x-other": other}) for host, other in ways]
    assert [answer.status for answer in answers] == [200, 200, 200, 429, 429]


@pytest.mark.parametrize(("instances", "passed"), [(1, 4), (2, 2)])
def test_limit_is_divided_among_proxies(kind: Kind, instances: int, passed: int) -> None:
    proxy = {"kind": kind, "instances": instances, **({"admin": bind()} if kind == "envoy" else {})}
    with _limited(kind, {"by": "all", "rate": "4/m"}, proxies={"edge": proxy}) as (gateway, _):
        assert _statuses(gateway, 6).count(200) == passed


def test_burst_is_divided_among_proxies(kind: Kind) -> None:
    proxy = {"kind": kind, "instances": 2, **({"admin": bind()} if kind == "envoy" else {})}
    with _limited(kind, {"by": "all", "rate": "2/m", "burst": 9}, proxies={"edge": proxy}) as (gateway, _):
        assert _statuses(gateway, 8).count(200) == 5


def test_tenant_may_have_its_own_rate(kind: Kind) -> None:
    tenants = {"acme": "3/m", "initech": "1/m", "default": "2/m", "include": "1/m"}
    limit = {"by": "tenant", "rate": "1/m", "tenants": tenants}
    with _limited(kind, limit, route={"auth": _AUTH}) as (gateway, a):
        keys = {"sk-a1": 2, "sk-a2": 3, "sk-g": 2, "sk-d": 4}
        passed = {key: _statuses(gateway, count, [("x-key", key)]).count(200) for key, count in keys.items()}
        assert a.requests == 6
    assert passed == {"sk-a1": 2, "sk-a2": 1, "sk-g": 1, "sk-d": 2}

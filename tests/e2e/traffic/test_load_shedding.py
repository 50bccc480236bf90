"""Where too few replicas are fit, requests are turned away and told when to return, and the rest is not trampled."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.checks import OFTEN
from tests.support.processes.client import Client
from tests.support.processes.fleet import fleet_of, pool_of, running
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_SHEDDING = pytest.mark.parametrize("kind", ["haproxy", "envoy"])


def _pool(members: list[Replica], percent: str, **keys: Any) -> dict[str, Any]:
    health = {
        "active": {**OFTEN, "http": {"path": "/health"}},
        "load_shedding": {"min_healthy": percent, "retry_after": "7s"},
    }
    return pool_of(members, balance={"algorithm": "round_robin"}, slow_start={"window": "100ms"}, health=health, **keys)


def _all_serve(client: Client, count: int) -> bool:
    load = client.load(24, 2)
    return not load.failures and len(load.by_replica) == count


def _all_shed(client: Client) -> bool:
    return client.load(12, 2).statuses == {503: 12}


@_SHEDDING
@pytest.mark.parametrize(("percent", "fit"), [("75%", 3), ("50%", 2), ("80%", 4)])
def test_below_min_healthy_requests_are_turned_away(kind: Kind, percent: str, fit: int) -> None:
    """At the limit all are served. With 80 % one of four is enough, also for Envoy, which by itself looks only below
    71 %."""
    with (
        replicas("a", "b", "c", "d") as pool,
        running(kind, fleet_of(_pool(pool, percent))) as gateway,
    ):
        eventually(lambda: _all_serve(gateway, 4))
        for replica in pool[fit:]:
            replica.behave(health=503)
        eventually(lambda: _all_serve(gateway, fit))
        pool[fit - 1].behave(health=503)
        eventually(lambda: _all_shed(gateway))
        served = sum(replica.requests for replica in pool)
        answer = gateway.post()
        assert sum(replica.requests for replica in pool) == served
        pool[fit - 1].behave(health=200)
        eventually(lambda: _all_serve(gateway, fit))
    assert (answer.status, answer.header_list("retry-after")) == (503, ["7"])
    assert (answer.header("content-type"), answer.json["error"]["type"]) == ("application/json", "unavailable")


@_SHEDDING
def test_a_drained_replica_counts_as_unfit_or_not_at_all(kind: Kind) -> None:
    """One of two, below 80 %: for HAProxy half of them, for Envoy all that there are."""
    with replicas("a", "b") as (a, b):
        pool = _pool([a, b], "80%")
        pool["replicas"][1]["drain"] = True
        with running(kind, fleet_of(pool)) as gateway:
            eventually(lambda: b.checks > 1 and a.checks > 1)
            assert gateway.load(12, 2).statuses == {200 if kind == "envoy" else 503: 12}
    assert (a.requests, b.requests) == (12 if kind == "envoy" else 0, 0)


@_SHEDDING
def test_a_pool_that_does_not_shed_serves_with_one(kind: Kind) -> None:
    with replicas("a", "b", "c", "d") as pool:
        calm = _pool(pool, "50%")
        del calm["health"]["load_shedding"]
        with running(kind, fleet_of(calm)) as gateway:
            eventually(lambda: _all_serve(gateway, 4))
            for replica in pool[1:]:
                replica.behave(health=503)
            eventually(lambda: _all_serve(gateway, 1))
            pool[0].behave(health=503)
            eventually(lambda: _all_shed(gateway))
            assert gateway.get().header("retry-after") is None


@_SHEDDING
def test_a_route_with_a_fallback_sheds_on_that_alone(kind: Kind) -> None:
    with replicas("a", "b", "c", "d", "spare") as (*pool, spare):
        pools = {"spare": pool_of([spare])}
        fleet = fleet_of(_pool(pool, "75%"), route={"fallback": "spare"}, pools=pools)
        with running(kind, fleet) as gateway:
            eventually(lambda: _all_serve(gateway, 4))
            for replica in pool[1:]:
                replica.behave(health=503)
            eventually(lambda: gateway.load(12).by_replica == {"a": 12})
            pool[0].behave(health=503)
            eventually(lambda: gateway.load(12).by_replica == {"spare": 12})


def test_envoy_says_where_it_cannot_shed() -> None:
    with replicas("a", "b") as (a, b):
        pool = _pool([a, b], "80%")
        pool["replicas"][1]["priority"] = 1
        with running("envoy", fleet_of(pool)) as gateway:
            assert "warning LB484" in gateway.messages


def test_nginx_says_that_it_cannot_shed() -> None:
    with replicas("a", "b") as (a, b), running("nginx", fleet_of(_pool([a, b], "80%"))) as gateway:
        assert "warning LB484" in gateway.messages
        b.refuse()
        gateway.load(10).assert_no_failure()

"""If too few replicas are healthy, a proxy sheds requests with `Retry-After` to protect the others."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.checks import OFTEN
from tests.support.processes.client import Client
from tests.support.processes.fleet import fleet_of, pool_of, running
from tests.support.processes.http1 import Request
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_SHEDDING = pytest.mark.parametrize("kind", ["haproxy", "envoy"])


def _pool(members: list[Replica], percent: str, **keys: Any) -> dict[str, Any]:
    health = {
        "active": {**OFTEN, "http": {"path": "/health"}},
        "load_shedding": {"min_healthy": percent, "retry_after": "7s"},
    }
    return pool_of(members, balance={"algorithm": "round_robin"}, slow_start={"window": "100ms"}, health=health, **keys)


_SHED = "shed"
_NO_REPLICA = "no replica"
_OUTCOMES: dict[int, dict[str, object]] = {
    4: {"at-80": 4, "at-75": 4, "at-50": 4, "unlimited": 4, "with-fallback": 4},
    3: {"at-80": _SHED, "at-75": 3, "at-50": 3, "unlimited": 3, "with-fallback": 3},
    2: {"at-80": _SHED, "at-75": _SHED, "at-50": 2, "unlimited": 2, "with-fallback": 2},
    1: {"at-80": _SHED, "at-75": _SHED, "at-50": _SHED, "unlimited": 1, "with-fallback": 1},
    0: {"at-80": _SHED, "at-75": _SHED, "at-50": _SHED, "unlimited": _NO_REPLICA, "with-fallback": "spare"},
}
"""Healthy replicas of four → route → number of replicas that answer, or another outcome."""


def _outcome(client: Client, route: str) -> object:
    """Return the number of replicas that answer requests for this route, or another outcome."""
    load = client.load(16, 2, Request(path=f"/{route}"))
    if load.statuses == {503: 16}:
        return _SHED if load.responses[0].header("retry-after") else _NO_REPLICA
    if load.failures:
        return f"{len(load.failures)} failures"
    return "spare" if load.by_replica.keys() == {"spare"} else len(load.by_replica)


def _await_outcomes(client: Client, healthy: int) -> None:
    """Wait until all routes have their outcome at the same time. A replica that recovers first gets few requests."""
    expected = _OUTCOMES[healthy]
    outcomes: dict[str, object] = {}

    def as_expected() -> bool:
        outcomes.update({route: _outcome(client, route) for route in expected})
        return outcomes == expected

    with suppress(AssertionError):
        eventually(as_expected, pause=0.4)
    assert outcomes == expected, f"{healthy} of 4 are healthy"


@_SHEDDING
def test_requests_are_shed_below_min_healthy(kind: Kind) -> None:
    """At the limit, all requests are served.

    By itself, Envoy would check it only below 71 %. A pool with a fallback or without a limit never sheds.
    """
    with replicas("a", "b", "c", "d", "spare") as (*members, spare):
        pools = {
            "at-80": _pool(members, "80%"),
            "at-75": _pool(members, "75%"),
            "at-50": _pool(members, "50%"),
            "unlimited": _pool(members, "50%"),
            "with-fallback": _pool(members, "75%"),
            "spare": pool_of([spare]),
        }
        del pools["unlimited"]["health"]["load_shedding"]
        routes: Fleet = {name: {"match": {"path_prefix": f"/{name}"}, "pool": name} for name in _OUTCOMES[0]}
        routes["with-fallback"]["fallback"] = "spare"
        with running(kind, {**fleet_of(pools["at-80"]), "pools": pools, "routes": routes}) as gateway:
            for healthy in (4, 3, 2, 1, 0, 3):
                for number, replica in enumerate(members):
                    replica.behave(health=200 if number < healthy else 503)
                _await_outcomes(gateway, healthy)
            served = sum(replica.requests for replica in members)
            answer = gateway.post("/at-80")
            assert sum(replica.requests for replica in members) == served
    assert (answer.status, answer.header_list("retry-after")) == (503, ["7"])
    assert (answer.header("content-type"), answer.json["error"]["type"]) == ("application/json", "unavailable")


@_SHEDDING
def test_drained_replica_counts_only_for_haproxy(kind: Kind) -> None:
    """One of two is drained, with a limit of 80 %: HAProxy counts half of the replicas, Envoy all of them."""
    with replicas("a", "b") as (a, b):
        pool = _pool([a, b], "80%")
        pool["replicas"][1]["drain"] = True
        with running(kind, fleet_of(pool)) as gateway:
            eventually(lambda: b.checks > 1 and a.checks > 1)
            assert gateway.load(12, 2).statuses == {200 if kind == "envoy" else 503: 12}
    assert (a.requests, b.requests) == (12 if kind == "envoy" else 0, 0)


def test_envoy_reports_a_pool_that_cannot_shed() -> None:
    with replicas("a", "b") as (a, b):
        pool = _pool([a, b], "80%")
        pool["replicas"][1]["priority"] = 1
        with running("envoy", fleet_of(pool)) as gateway:
            assert "warning LB484" in gateway.messages


def test_nginx_reports_that_it_cannot_shed() -> None:
    with replicas("a", "b") as (a, b), running("nginx", fleet_of(_pool([a, b], "80%"))) as gateway:
        assert "warning LB484" in gateway.messages
        b.refuse()
        gateway.load(10).assert_no_failure()

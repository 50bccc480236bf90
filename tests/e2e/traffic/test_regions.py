"""Data of a route with regions stays in them, even during failures: the response is 503 rather than another region."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.checks import TCP
from tests.support.processes.fleet import entry, fleet_of, running
from tests.support.processes.http1 import Request
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually


def _pool(members: Sequence[Replica], **keys: Any) -> dict[str, Any]:
    """Return a pool in which the region of `east-…` is east; a replica called `lost-…` has none."""
    entries = []
    for replica in members:
        place = replica.name.split("-")[0]
        entries.append(entry(replica, **({} if place == "lost" else {"region": place})))
    return {"replicas": entries, "health": TCP, **keys}


def _fleet(members: Sequence[Replica], route: dict[str, Any] | None = None, **pools: Sequence[Replica]) -> Fleet:
    """Return a fleet in which `bound` is for /bound and east only; `free` uses the same pool, everywhere."""
    fleet = fleet_of(_pool(members), pools={name: _pool(of) for name, of in pools.items()})
    bound = {"match": {"path_prefix": "/bound"}, "regions": ["east"], **(route or {"pool": "pool"})}
    fleet["routes"] = {"bound": bound, "free": {"match": {"path_prefix": "/"}, "pool": "pool"}}
    return fleet


_BOUND = Request("POST", "/bound", body=b"{}")


def test_only_replicas_of_the_region_serve_requests(kind: Kind) -> None:
    names = ("east-0", "east-1", "west-0", "lost-0")
    with replicas(*names) as pool, running(kind, _fleet(pool)) as gateway:
        bound = gateway.load(80, 8, _BOUND)
        free = gateway.load(80, 8, Request("POST", "/free"))
    bound.assert_no_failure()
    assert set(bound.by_replica) == {"east-0", "east-1"}
    assert set(free.by_replica) == set(names)


def test_several_regions_can_be_allowed(kind: Kind) -> None:
    with replicas("east-0", "west-0", "north-0", "lost-0") as pool:
        fleet = _fleet(pool)
        fleet["routes"]["bound"]["regions"] = ["east", "west"]
        with running(kind, fleet) as gateway:
            bound = gateway.load(100, 4, _BOUND)
    bound.assert_no_failure()
    assert set(bound.by_replica) == {"east-0", "west-0"}


def test_region_without_a_live_replica_is_503(kind: Kind) -> None:
    route = {"pool": "pool", "retry": {"attempts": 10}}
    with replicas("east-0", "east-1", "west-0", "lost-0") as pool:
        fleet = _fleet(pool, route)
        with running(kind, fleet) as gateway:
            assert gateway.load(20, 2, _BOUND).statuses == {200: 20}
            for replica in pool[:2]:
                replica.refuse()
            for replica in pool[2:]:
                replica.forget()
            at_once = gateway.load(30, 3, _BOUND, gap=0.05)
            assert (pool[2].requests, pool[3].requests) == (0, 0)
            free = gateway.load(20, 2, Request("POST", "/free"))
            pool[0].accept()
            eventually(lambda: gateway.post("/bound").replica == "east-0")
    assert at_once.statuses == {503: 30}
    assert set(free.by_replica) == {"west-0", "lost-0"}


def test_drained_region_is_503(kind: Kind) -> None:
    with replicas("east-0", "west-0") as pool:
        fleet = _fleet(pool)
        fleet["pools"]["pool"]["replicas"][0]["drain"] = True
        with running(kind, fleet) as gateway:
            answers = [gateway.post("/bound") for _ in range(4)]
    assert [answer.status for answer in answers] == [503] * 4


def test_regions_apply_to_split_and_pin(kind: Kind) -> None:
    route = {
        "split": {"pool": 1, "second": 1},
        "pin": [{"header": "x-pool", "equals": "second", "pool": "second"}],
    }
    names = ("east-0", "west-0", "east-1", "west-1", "lost-1")
    with replicas(*names) as (a, b, c, d, e), running(kind, _fleet([a, b], route, second=[c, d, e])) as gateway:
        split = gateway.load(80, 4, _BOUND)
        pinned = gateway.load(50, 4, Request("POST", "/bound", {"x-pool": "second"}))
        c.refuse()
        lost = gateway.load(20, 2, Request("POST", "/bound", {"x-pool": "second"}))
    split.assert_no_failure()
    assert set(split.by_replica) == {"east-0", "east-1"}
    assert set(pinned.by_replica) == {"east-1"}
    assert lost.statuses == {503: 20}


def test_regions_apply_to_the_fallback(kind: Kind) -> None:
    with replicas("east-0", "west-0", "east-9", "west-9", "lost-9") as (a, b, *spares):
        fleet = _fleet([a, b], {"pool": "pool", "fallback": "spare"}, spare=spares)
        with running(kind, fleet) as gateway:
            a.refuse()
            eventually(lambda: gateway.post("/bound").ok)
            spilled = gateway.load(60, 4, _BOUND)
            spares[0].refuse()
            down = gateway.load(20, 2, _BOUND, gap=0.05)
            assert sum(replica.requests for replica in (b, *spares[1:])) == 0
    spilled.assert_no_failure()
    assert set(spilled.by_replica) == {"east-9"}
    assert down.statuses == {503: 20}


def test_fallback_without_a_replica_in_the_region_is_unused(kind: Kind) -> None:
    with replicas("east-0", "east-9", "west-9", "lost-9") as (a, *spares):
        fleet = _fleet([a], {"pool": "pool", "fallback": "spare"}, spare=spares)
        fleet["pools"]["spare"]["replicas"][0]["drain"] = True
        with running(kind, fleet) as gateway:
            assert gateway.post("/bound").replica == "east-0"
            a.refuse()
            down = gateway.load(20, 2, _BOUND, gap=0.05)
            assert sum(replica.requests for replica in spares) == 0
    assert down.statuses == {503: 20}


@pytest.mark.parametrize("kind", ["nginx", "envoy"])
def test_regions_apply_to_the_mirror(kind: Kind) -> None:
    with replicas("east-0", "west-0", "east-8", "west-8", "lost-8") as (a, b, *shadows):
        fleet = _fleet([a, b], {"pool": "pool", "mirror": {"pool": "shadow"}}, shadow=shadows)
        with running(kind, fleet) as gateway:
            gateway.load(40, 2, _BOUND).assert_no_failure()
            eventually(lambda: shadows[0].requests == 40)
            shadows[0].refuse()
            gateway.load(20, 2, _BOUND, gap=0.02).assert_no_failure()
            assert sum(replica.requests for replica in shadows[1:]) == 0

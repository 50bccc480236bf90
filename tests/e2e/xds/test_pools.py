"""Pools that come, change and go while 200 requests a second run through two Envoys: not one request is lost."""

from __future__ import annotations

import time
from typing import Any

from tests.support.fleets import Fleet
from tests.support.processes.client import Steady
from tests.support.processes.control import XdsEnvoy, controlling, driven
from tests.support.processes.driving import BOTH, both, change, loaded
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.replicas import Replica, replicas


def _to(name: str, /, **pools: Any) -> dict[str, Any]:
    """The sections `routes` and `pools`: everything goes to `name`."""
    return {"routes": {"everything": {"match": {"path_prefix": "/"}, "pool": name}}, "pools": pools}


def _clusters(envoy: XdsEnvoy) -> set[str]:
    return set(envoy.resources()["cds"])


def _answering(loads: list[Steady], seconds: float = 0.7) -> list[set[str]]:
    """Who answers from now on."""
    now = time.monotonic()
    time.sleep(seconds)
    return [set(load.since(now).by_replica) for load in loads]


def _fleet(first: Replica) -> Fleet:
    return fleet_of([first], **driven(*BOTH))


def test_a_pool_is_added_changed_and_removed_without_a_lost_request() -> None:
    with (
        replicas("a", "b") as (a, b),
        controlling(fleet := _fleet(a)) as control,
        both(control) as envoys,
        loaded(envoys) as loads,
    ):
        old, fresh = pool_of([a]), pool_of([b])
        halves = _to("pool", pool=old, fresh=fresh)
        halves["routes"]["everything"] = {"match": {"path_prefix": "/"}, "split": {"pool": 1, "fresh": 1}}
        change(control, {**fleet, **halves})
        assert _answering(loads) == [{"a", "b"}] * 2

        before = [envoy.stat("cluster_manager.cluster_modified") for envoy in envoys]
        changed = (
            {"circuit_breaker": {"max_requests": 777}},
            {"timeouts": {"connect": "3s"}},
            {"balance": {"algorithm": "random"}, "health": {"active": {"tcp": {}, "interval": "1s"}}},
        )
        for keys in changed:
            change(control, {**fleet, **halves, "pools": {"pool": old, "fresh": {**fresh, **keys}}})
        after = [envoy.stat("cluster_manager.cluster_modified") for envoy in envoys]
        assert [now - was for was, now in zip(before, after, strict=True)] == [3, 3]
        assert _answering(loads) == [{"a", "b"}] * 2

        change(control, {**fleet, **_to("fresh", fresh=fresh)})
        assert _answering(loads) == [{"b"}] * 2
        assert [_clusters(envoy) & {"pool", "fresh"} for envoy in envoys] == [{"fresh"}] * 2


def test_the_edit_that_moves_the_route_may_remove_the_pool_that_it_leaves() -> None:
    """Each time the pool that serves is taken away, and the one that is to serve was not known before."""
    with (
        replicas("a", "b") as (a, b),
        controlling(fleet := {**_fleet(a), **_to("p0", p0=pool_of([a]))}) as control,
        both(control) as envoys,
        loaded(envoys) as loads,
    ):
        for number, replica in enumerate((b, a, b), 1):
            name = f"p{number}"
            running = [envoy.client().send("GET", "/sse?n=12&gap=0.25") for envoy in envoys]
            time.sleep(0.2)
            change(control, {**fleet, **_to(name, **{name: pool_of([replica])})})
            assert _answering(loads, 0.3) == [{replica.name}, {replica.name}]
            assert [_clusters(envoy) & {"p0", "p1", "p2", "p3"} for envoy in envoys] == [{name}, {name}]
            assert [len(stream.result(60).events()) for stream in running] == [12, 12], "its answer was cut off"


def test_replicas_come_and_go_without_a_lost_request() -> None:
    with (
        replicas("a", "b", "c") as (a, b, c),
        controlling(fleet := _fleet(a)) as control,
        both(control) as envoys,
        loaded(envoys) as loads,
    ):
        for members in ([a, b], [b, c], [c], [a, b, c], [b, a]):
            change(control, {**fleet, "pools": {"pool": pool_of(members)}})
            assert _answering(loads, 0.3) == [{item.name for item in members}] * 2

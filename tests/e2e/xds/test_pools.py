"""Pools are added, changed and removed while requests run through two Envoys: no request is lost."""

from __future__ import annotations

import time
from typing import Any

from tests.support.processes.client import Steady
from tests.support.processes.control import XdsEnvoy
from tests.support.processes.driven_envoys import DrivenEnvoys
from tests.support.processes.driving import change, loaded
from tests.support.processes.fleet import pool_of
from tests.support.processes.replicas import replicas

_RATE = 100
"""Requests per second through each Envoy."""


def _to(name: str, /, **pools: Any) -> dict[str, Any]:
    """Return the sections `routes` and `pools` that send everything to `name`."""
    return {"routes": {"everything": {"match": {"path_prefix": "/"}, "pool": name}}, "pools": pools}


def _clusters(envoy: XdsEnvoy) -> set[str]:
    return set(envoy.resources()["cds"])


def _answering(loads: list[Steady]) -> list[set[str]]:
    """Return the replicas that answer the requests sent from now on, at least two dozen."""
    now = time.monotonic()
    time.sleep(0.3)
    return [set(load.since(now).by_replica) for load in loads]


def test_pool_is_added_changed_and_removed(driven_envoys: DrivenEnvoys) -> None:
    control, envoys = driven_envoys.control, driven_envoys.envoys
    with replicas("a", "b") as (a, b):
        driven_envoys.serve(fleet := driven_envoys.fleet_of([a]))
        with loaded(envoys, _RATE) as loads:
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


def test_one_edit_moves_the_route_and_removes_its_pool(driven_envoys: DrivenEnvoys) -> None:
    """Each time the pool that serves is removed, and the next one is new."""
    control, envoys = driven_envoys.control, driven_envoys.envoys
    with replicas("a", "b") as (a, b):
        fleet = {**driven_envoys.fleet_of([a]), **_to("p0", p0=pool_of([a]))}
        driven_envoys.serve(fleet)
        with loaded(envoys, _RATE) as loads:
            for number, replica in enumerate((b, a), 1):
                name = f"p{number}"
                streams = [envoy.client().send("GET", "/sse?n=8&gap=0.25") for envoy in envoys]
                time.sleep(0.2)
                change(control, {**fleet, **_to(name, **{name: pool_of([replica])})})
                assert _answering(loads) == [{replica.name}, {replica.name}]
                assert [_clusters(envoy) & {"p0", "p1", "p2"} for envoy in envoys] == [{name}, {name}]
                assert [len(stream.result(60).events()) for stream in streams] == [8, 8], "its answer was cut off"


def test_replicas_are_added_and_removed(driven_envoys: DrivenEnvoys) -> None:
    control, envoys = driven_envoys.control, driven_envoys.envoys
    with replicas("a", "b", "c") as (a, b, c):
        driven_envoys.serve(fleet := driven_envoys.fleet_of([a]))
        with loaded(envoys, _RATE) as loads:
            for members in ([a, b], [b, c], [c], [a, b, c], [b, a]):
                change(control, {**fleet, "pools": {"pool": pool_of(members)}})
                assert _answering(loads) == [{item.name for item in members}] * 2

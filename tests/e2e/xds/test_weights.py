"""A new weight in the fleet file: the shares follow, and in the whole Envoy, only endpoints change."""

from __future__ import annotations

import time

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.control import XdsEnvoy
from tests.support.processes.driven_envoys import DrivenEnvoys
from tests.support.processes.driving import await_workers, change, loaded
from tests.support.processes.fleet import pool_of
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually


def _pool(members: list[Replica], *weights: float) -> dict[str, object]:
    return pool_of(members, weights, balance={"algorithm": "round_robin"}, connections={"idle": "5m"})


def _heavier(envoy: XdsEnvoy, one: Replica, other: Replica) -> bool:
    weights = envoy.weights("pool")
    return weights[one.address] > weights[other.address]


def _untouched(envoy: XdsEnvoy) -> dict[str, int]:
    """Return the counters that a new weight does not change: updates of the other types, hosts, and closed
    connections."""
    counted = {name: count for name, count in envoy.updates().items() if not name.startswith("eds.")}
    ended = envoy.stats("cluster.pool.upstream_cx_destroy$|membership_change$|downstream_cx_destroy_active_rq$")
    return {**counted, **ended}


def test_new_weight_changes_endpoints_and_shares_only(driven_envoys: DrivenEnvoys) -> None:
    """Envoy takes deterministic weighted turns, so that a hundred requests show a share to about 0.01."""
    control, envoys = driven_envoys.control, driven_envoys.envoys
    with replicas("a", "b") as pair:
        a, b = pair
        fleet: Fleet = driven_envoys.fleet_of(_pool(pair, 1, 1))
        driven_envoys.serve(fleet)
        with loaded(envoys, 100) as loads:
            streams = [envoy.client().send("GET", "/sse?n=20&gap=0.2") for envoy in envoys]
            started = time.monotonic()
            time.sleep(1)
            assert [load.since(started).shares()["a"] for load in loads] == pytest.approx([0.5, 0.5], abs=0.05)
            before = [_untouched(envoy) for envoy in envoys]

            control.write({**fleet, "pools": {"pool": _pool(pair, 3, 1)}})
            eventually(lambda: all(_heavier(envoy, a, b) for envoy in envoys))
            control.write({**fleet, "pools": {"pool": _pool(pair, 1, 99)}})
            eventually(lambda: all(_heavier(envoy, b, a) for envoy in envoys))
            for envoy in envoys:
                await_workers(envoy)
            moved = time.monotonic()
            assert [load.since(moved).shares()["b"] > 0.9 for load in loads] == [True, True]

            change(control, {**fleet, "pools": {"pool": _pool(pair, 3, 1)}})
            moved = time.monotonic()
            time.sleep(1)
            assert [load.since(moved).shares()["a"] for load in loads] == pytest.approx([0.75, 0.75], abs=0.04)
            assert [_untouched(envoy) for envoy in envoys] == before
            assert [len(stream.result(60).events()) for stream in streams] == [20, 20]
        assert all(stream.result().ok for stream in streams)

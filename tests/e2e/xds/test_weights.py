"""A new weight in the file: the shares follow within the second, and of all that an Envoy has, endpoints alone move."""

from __future__ import annotations

import time

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.control import XdsEnvoy, controlling, driven
from tests.support.processes.driving import BOTH, both, change, loaded, synced
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually


def _pool(members: list[Replica], *weights: float) -> dict[str, object]:
    return pool_of(members, weights, balance={"algorithm": "round_robin"}, connections={"idle": "5m"})


def _heavier(envoy: XdsEnvoy, one: Replica, other: Replica) -> bool:
    weights = envoy.weights("pool")
    return weights[one.address] > weights[other.address]


def _untouched(envoy: XdsEnvoy) -> dict[str, int]:
    """What may not move with a weight: what was accepted of the other types, hosts, and connections that were ended."""
    counted = {name: count for name, count in envoy.updates().items() if not name.startswith("eds.")}
    ended = envoy.stats("cluster.pool.upstream_cx_destroy$|membership_change$|downstream_cx_destroy_active_rq$")
    return {**counted, **ended}


def test_the_shares_follow_a_new_weight_and_nothing_else_moves() -> None:
    with replicas("a", "b") as pair:
        a, b = pair
        fleet: Fleet = fleet_of(_pool(pair, 1, 1), **driven(*BOTH))
        with controlling(fleet) as control, both(control) as envoys, loaded(envoys) as loads:
            synced(control)
            streams = [envoy.client().send("GET", "/sse?n=20&gap=0.2") for envoy in envoys]
            time.sleep(1)
            before = [_untouched(envoy) for envoy in envoys]
            assert [load.load.shares()["a"] for load in loads] == pytest.approx([0.5, 0.5], abs=0.05)

            control.write({**fleet, "pools": {"pool": _pool(pair, 3, 1)}})
            eventually(lambda: all(_heavier(envoy, a, b) for envoy in envoys), pause=0.01)
            control.write({**fleet, "pools": {"pool": _pool(pair, 1, 99)}})
            eventually(lambda: all(_heavier(envoy, b, a) for envoy in envoys), pause=0.01)
            moved = time.monotonic()
            time.sleep(0.3)
            assert [load.since(moved).shares()["b"] > 0.9 for load in loads] == [True, True]

            change(control, {**fleet, "pools": {"pool": _pool(pair, 3, 1)}})
            moved = time.monotonic()
            time.sleep(2)
            assert [load.since(moved).shares()["a"] for load in loads] == pytest.approx([0.75, 0.75], abs=0.04)
            assert [_untouched(envoy) for envoy in envoys] == before
            assert [len(stream.result(60).events()) for stream in streams] == [20, 20]
        assert all(stream.result().ok for stream in streams)

"""`lbctl serve` is killed and started again, twenty times, while 200 requests a second run through two Envoys."""

from __future__ import annotations

import time

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.control import XdsEnvoy, controlling, driven
from tests.support.processes.driving import BOTH, both, change, loaded, synced
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_TIMES = 20
_MOVED = "(membership_change|cluster_(added|modified|removed)|listener_(added|modified|removed)|rds.*config_reload)$"


def _fleet(a: Replica, b: Replica) -> Fleet:
    fleet = fleet_of([a, b], **driven(*BOTH))
    fleet["routes"]["other"] = {"match": {"path_prefix": "/other"}, "pool": "other"}
    fleet["pools"]["other"] = pool_of([a], [1], health={"active": {"tcp": {}, "interval": "1s"}})
    return fleet


def _moved(envoy: XdsEnvoy) -> dict[str, int]:
    """What would show that a host, a cluster, a listener or routes were taken anew."""
    return envoy.stats(_MOVED)


@pytest.mark.slow
def test_twenty_kills_cost_no_request_and_nothing_is_taken_anew() -> None:
    with (
        replicas("a", "b") as (a, b),
        controlling(fleet := _fleet(a, b)) as control,
        both(control, written=False) as envoys,
        loaded(envoys),
    ):
        synced(control)
        before = [_moved(envoy) for envoy in envoys]
        assert all(found["cluster.pool.membership_change"] == 1 for found in before)
        for number in range(_TIMES):
            control.kill()
            control.start()
            if number % 2:  # else it is killed again while they connect
                synced(control)
            assert [envoy.warming() for envoy in envoys] == [0, 0]
        synced(control)
        assert [_moved(envoy) for envoy in envoys] == before
        change(control, {**fleet, "pools": {**fleet["pools"], "pool": pool_of([a, b], [1, 5])}})
        assert all(envoy.weights("pool")[b.address] > envoy.weights("pool")[a.address] for envoy in envoys)


def test_a_restart_with_another_fleet_sends_what_differs_and_loses_nothing() -> None:
    """A pool came, another went and a third has new weights while nobody served."""
    with (
        replicas("a", "b") as (a, b),
        controlling(fleet := _fleet(a, b)) as control,
        both(control) as envoys,
        loaded(envoys) as loads,
    ):
        synced(control)
        control.kill()
        later: Fleet = {**fleet, "pools": {"pool": pool_of([a, b], [1, 9]), "fresh": pool_of([b])}}
        later["routes"] = {
            "everything": {"match": {"path_prefix": "/"}, "pool": "fresh"},
            "still": {"match": {"path_prefix": "/still"}, "pool": "pool"},
        }
        control.write(later)
        time.sleep(0.5)
        control.start()
        synced(control)
        now = time.monotonic()
        time.sleep(0.5)
        assert [set(load.since(now).by_replica) for load in loads] == [{"b"}, {"b"}]
        for envoy in envoys:
            assert set(envoy.resources()["cds"]) == {"pool", "fresh"}
            weights = envoy.weights("pool")
            assert weights[b.address] > weights[a.address]


def test_a_pool_in_use_that_went_while_nobody_served_costs_no_request() -> None:
    """In the state of the world, what is not told of is gone at once; a new process knows what the last one told."""
    with (
        replicas("a", "b") as (a, b),
        controlling(fleet := fleet_of([a], **driven(*BOTH))) as control,
        both(control) as envoys,
        loaded(envoys) as loads,
    ):
        synced(control)
        for number in range(4):
            control.kill()
            name, replica = f"fresh-{number}", (b, a)[number % 2]
            control.write(
                {
                    **fleet,
                    "pools": {name: pool_of([replica])},
                    "routes": {"everything": {"match": {"path_prefix": "/"}, "pool": name}},
                }
            )
            time.sleep(0.3)
            control.start()
            synced(control)
            now = time.monotonic()
            time.sleep(0.3)
            assert [set(load.since(now).by_replica) for load in loads] == [{replica.name}] * 2
        eventually(lambda: [set(envoy.resources()["cds"]) for envoy in envoys] == [{"fresh-3"}] * 2)

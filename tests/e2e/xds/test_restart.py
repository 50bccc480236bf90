"""`lbctl serve` is killed and started again while requests run through two Envoys."""

from __future__ import annotations

import time

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.control import XdsEnvoy, controlling, driven
from tests.support.processes.driven_envoys import DrivenEnvoys
from tests.support.processes.driving import BOTH, both, change, loaded, synced
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_REPLACED = "(membership_change|cluster_(added|modified|removed)|listener_(added|modified|removed)|rds.*config_reload)$"


def _two_pool_fleet(a: Replica, b: Replica) -> Fleet:
    fleet = fleet_of([a, b], **driven(*BOTH))
    fleet["routes"]["other"] = {"match": {"path_prefix": "/other"}, "pool": "other"}
    fleet["pools"]["other"] = pool_of([a], [1], health={"active": {"tcp": {}, "interval": "1s"}})
    return fleet


def _replaced(envoy: XdsEnvoy) -> dict[str, int]:
    """Return the counters that grow when a host, a cluster, a listener or routes are replaced."""
    return envoy.stats(_REPLACED)


@pytest.mark.parametrize(("kills", "rate"), [(4, 100), pytest.param(20, 200, marks=pytest.mark.nightly)])
def test_kills_lose_no_request_and_replace_nothing(kills: int, rate: int) -> None:
    with (
        replicas("a", "b") as (a, b),
        controlling(fleet := _two_pool_fleet(a, b), module="lbctl") as control,  # each start has its own hash seed
        both(control, written=False) as envoys,
        loaded(envoys, rate),
    ):
        synced(control)
        before = [_replaced(envoy) for envoy in envoys]
        assert all(counters["cluster.pool.membership_change"] == 1 for counters in before)
        for number in range(kills):
            control.kill()
            control.start()
            if number % 2:  # else it is killed again while they connect
                synced(control)
            assert [envoy.warming() for envoy in envoys] == [0, 0]
        synced(control)
        assert [_replaced(envoy) for envoy in envoys] == before
        change(control, {**fleet, "pools": {**fleet["pools"], "pool": pool_of([a, b], [1, 5])}})
        assert all(envoy.weights("pool")[b.address] > envoy.weights("pool")[a.address] for envoy in envoys)


def test_restart_with_another_fleet_sends_the_difference(driven_envoys: DrivenEnvoys) -> None:
    """While no control plane runs, one pool is added, another removed, and a third gets new weights."""
    control, envoys = driven_envoys.control, driven_envoys.envoys
    with replicas("a", "b") as (a, b):
        fleet = driven_envoys.fleet_of([a, b])
        fleet["pools"]["other"] = pool_of([a])
        driven_envoys.serve(fleet)
        with loaded(envoys, 100) as loads:
            control.kill()
            later: Fleet = {**fleet, "pools": {"pool": pool_of([a, b], [1, 9]), "fresh": pool_of([b])}}
            later["routes"] = {
                "everything": {"match": {"path_prefix": "/"}, "pool": "fresh"},
                "still": {"match": {"path_prefix": "/still"}, "pool": "pool"},
            }
            control.write(later)
            control.start()
            synced(control)
            moved = time.monotonic()
            assert [set(load.since(moved).by_replica) for load in loads] == [{"b"}, {"b"}]
            for envoy in envoys:
                eventually(lambda envoy=envoy: set(envoy.resources()["cds"]) == {"pool", "fresh"})  # type: ignore[misc]
                weights = envoy.weights("pool")
                assert weights[b.address] > weights[a.address]


def test_pool_removed_during_a_restart_loses_no_request(driven_envoys: DrivenEnvoys) -> None:
    """With state-of-the-world xDS, an Envoy drops everything that is not sent: a new process must know what the
    previous one sent."""
    control, envoys = driven_envoys.control, driven_envoys.envoys
    with replicas("a", "b") as (a, b):
        driven_envoys.serve(fleet := driven_envoys.fleet_of([a]))
        with loaded(envoys, 100) as loads:
            for number, replica in enumerate((b, a)):
                control.kill()
                name = f"fresh-{number}"
                control.write(
                    {
                        **fleet,
                        "pools": {name: pool_of([replica])},
                        "routes": {"everything": {"match": {"path_prefix": "/"}, "pool": name}},
                    }
                )
                control.start()
                synced(control)
                moved = time.monotonic()
                assert [set(load.since(moved).by_replica) for load in loads] == [{replica.name}] * 2
            eventually(lambda: [set(envoy.resources()["cds"]) for envoy in envoys] == [{"fresh-1"}] * 2)

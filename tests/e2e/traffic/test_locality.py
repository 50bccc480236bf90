"""The zone of the proxy serves first, and others when it loses healthy replicas."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.checks import TCP
from tests.support.processes.client import Client
from tests.support.processes.fleet import bind, entry, fleet_of, running
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_BOTH = pytest.mark.parametrize("kind", ["haproxy", "envoy"])
_PLACES = {
    "own": {"region": "east", "zone": "east-a"},
    "near": {"region": "east", "zone": "east-b"},
    "far": {"region": "west", "zone": "west-a"},
    "namesake": {"region": "west", "zone": "east-a"},
    "lost": {},
}


def _fleet(kind: Kind, pool: list[Replica], prefer: str = "zone", **more: Any) -> Fleet:
    """Return a fleet.

    The name of a replica contains its location: own-0 is in the zone of the proxy, near-0 in its region.
    """
    members = [entry(replica, **_PLACES[replica.name.split("-")[0]]) for replica in pool]
    proxy = {"kind": kind, "region": "east", "zone": "east-a", **({"admin": bind()} if kind == "envoy" else {})}
    return fleet_of(
        {
            "replicas": members,
            "locality": {"prefer": prefer, "spill_below": "70%"},
            "health": TCP,
            "balance": {"algorithm": "round_robin"},
            **more,
        },
        proxies={"under-test": proxy},
    )


def _shares(client: Client, count: int = 60, *, settled: bool = True) -> dict[str, float]:
    """Return location → its share. Unless `settled`, a request may fail: no check has detected the dead replica yet."""
    load = client.load(count, 4)
    if settled:
        load.assert_no_failure()
    places: Counter[str] = Counter()
    for name, number in load.by_replica.items():
        places[name.split("-")[0]] += number
    return {place: number / count for place, number in places.items()}


def _await_shares(client: Client, expected: dict[str, float], tolerance: float = 0.12) -> None:
    """Wait until the locations get these shares, and check that they keep them.

    If several locations share, Envoy draws the location of each request: 500 of them make a false alarm improbable.
    """
    alone = set(expected.values()) == {1.0}
    few, many = (24, 60) if alone else (100, 500)
    settled = pytest.approx(expected, abs=0 if alone else tolerance)
    eventually(lambda: _shares(client, few, settled=False) == settled, pause=0.2)
    assert _shares(client, many) == pytest.approx(expected, abs=tolerance)


def test_own_zone_serves_alone_while_healthy(kind: Kind) -> None:
    names = ("own-0", "own-1", "near-0", "near-1", "far-0", "lost-0")
    with replicas(*names) as pool, running(kind, _fleet(kind, pool)) as gateway:
        assert _shares(gateway) == {"own": 1.0}
        assert gateway.load(20, 10, keep_alive=False).statuses == {200: 20}


def test_same_zone_name_in_another_region_is_remote(kind: Kind) -> None:
    with replicas("own-0", "namesake-0") as pool, running(kind, _fleet(kind, pool)) as gateway:
        assert _shares(gateway) == {"own": 1.0}
        pool[0].refuse()
        _await_shares(gateway, {"namesake": 1.0})


def test_other_zones_serve_while_the_own_zone_is_down(kind: Kind) -> None:
    with replicas("own-0", "own-1", "near-0") as pool, running(kind, _fleet(kind, pool)) as gateway:
        pool[0].refuse()
        pool[1].refuse()
        _await_shares(gateway, {"near": 1.0})
        pool[0].accept()
        pool[1].accept()
        _await_shares(gateway, {"own": 1.0})


@_BOTH
def test_own_zone_keeps_requests_above_spill_below(kind: Kind) -> None:
    names = ("own-0", "own-1", "own-2", "own-3", "near-0", "near-1")
    with replicas(*names) as pool, running(kind, _fleet(kind, pool)) as gateway:
        pool[0].refuse()
        _await_shares(gateway, {"own": 1.0}, 0)


@_BOTH
def test_next_zone_takes_a_part_below_spill_below(kind: Kind) -> None:
    """One of four: Envoy keeps 25 ÷ 70 of the requests, HAProxy shares by weight among the five that are left."""
    names = ("own-0", "own-1", "own-2", "own-3", "near-0", "near-1", "near-2", "near-3", "far-0")
    own = {"envoy": 0.36, "haproxy": 0.2}[kind]
    with replicas(*names) as pool, running(kind, _fleet(kind, pool)) as gateway:
        for replica in pool[:3]:
            replica.refuse()
        _await_shares(gateway, {"own": own, "near": 1 - own})


def test_nginx_spills_without_a_replica_in_its_zone() -> None:
    """As the table of capabilities documents."""
    names = ("own-0", "own-1", "own-2", "own-3", "near-0")
    with replicas(*names) as pool, running("nginx", _fleet("nginx", pool)) as gateway:
        for replica in pool[:3]:
            replica.refuse()
        _await_shares(gateway, {"own": 1.0})


@_BOTH
def test_own_region_is_preferred_to_the_rest(kind: Kind) -> None:
    with replicas("own-0", "near-0", "far-0", "lost-0") as pool, running(kind, _fleet(kind, pool)) as gateway:
        pool[0].refuse()
        _await_shares(gateway, {"near": 1.0})
        pool[1].refuse()
        _await_shares(gateway, {"far": 0.5, "lost": 0.5})


def test_preferred_region_uses_its_zones_equally(kind: Kind) -> None:
    with replicas("own-0", "near-0", "far-0") as pool, running(kind, _fleet(kind, pool, "region")) as gateway:
        assert _shares(gateway, 100) == pytest.approx({"own": 0.5, "near": 0.5}, abs=0.1)


def test_proxy_without_a_zone_uses_all_equally(kind: Kind) -> None:
    with replicas("own-0", "near-0", "far-0") as pool:
        fleet = _fleet(kind, pool)
        del fleet["proxies"]["under-test"]["zone"], fleet["proxies"]["under-test"]["region"]
        with running(kind, fleet) as gateway:
            assert _shares(gateway, 150) == pytest.approx({"own": 1 / 3, "near": 1 / 3, "far": 1 / 3}, abs=0.1)


@_BOTH
def test_spilling_loses_no_request(kind: Kind) -> None:
    with replicas("own-0", "own-1", "near-0", "near-1") as pool, running(kind, _fleet(kind, pool)) as gateway:
        gateway.load(20, 4).assert_no_failure()
        pool[0].refuse()
        load = gateway.load(140, 4, gap=0.04)
    load.assert_no_failure()
    assert {"own-1", "near-0"} <= set(load.by_replica)

"""Replicas are added and removed while HAProxy serves: without a reload, without a lost request, under their own
names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lbctl.apply.haproxy import running
from lbctl.serve.traffic.haproxy import report
from tests.support.fleets import Fleet
from tests.support.processes.binaries import Binary
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.haproxy_driven import VERSIONS, Driven, driven
from tests.support.processes.http1 import Request
from tests.support.processes.ports import free_pair
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.scripted_picker import scripted_picker
from tests.support.processes.waiting import eventually

NAMES = tuple(f"r{number:02}" for number in range(12, 0, -1))
"""The newest come first in the file, so that nothing in it may depend on the first replica."""
CHECKED: dict[str, Any] = {
    "balance": {"algorithm": "round_robin"},
    "slow_start": {"window": "1s"},
    "health": {
        "active": {
            "http": {"path": "/health"},
            "interval": "200ms",
            "healthy_threshold": 1,
            "unhealthy_threshold": 100,
        },
        "load_shedding": {"min_healthy": "10%"},
    },
    "circuit_breaker": {"per_replica": {"max_requests": 100}, "max_requests": 600},
}
STICKY = {**CHECKED, "affinity": {"cookie": "lb"}}


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> Binary:
    binary: Binary = request.param
    return binary


@pytest.fixture(scope="module")
def twelve() -> Iterator[list[Replica]]:
    with replicas(*NAMES) as pool:
        yield pool


def fleet(of: list[Replica], keys: dict[str, Any]) -> Fleet:
    listener = {"access_log": {"format": "json", "path": "/dev/stdout"}}
    return fleet_of(pool_of(of, **keys), listener=listener)


def resized(gateway: Driven, of: list[Replica], keys: dict[str, Any]) -> None:
    gateway.change({**fleet(of, keys), "listeners": gateway.listeners})
    eventually(lambda: gateway.apply().done)
    even = pytest.approx({item.name: 1 / len(of) for item in of}, abs=0.02)
    eventually(lambda: gateway.load(240, 8).shares() == even)


@pytest.mark.parametrize(("keys", "extra"), [(CHECKED, {}), (STICKY, {"slots": 9})], ids=["added", "slots"])
def test_replicas_come_and_go_without_reload_or_lost_request(
    version: Binary, twelve: list[Replica], keys: dict[str, Any], extra: dict[str, Any]
) -> None:
    three = twelve[-3:]
    with driven(version, fleet(three, keys), **extra) as gateway:
        worker = gateway.worker
        with gateway.steady(100) as steady:
            resized(gateway, twelve, keys)
            eventually(lambda: set(steady.load.shares()) == set(NAMES))
            resized(gateway, three, keys)
        steady.load.assert_no_failure()
        assert gateway.worker == worker
        logged = (json.loads(row) for row in gateway.proxy.stdout.read_bytes().splitlines())
        assert {row["replica"] for row in logged} == set(NAMES)
        counted = running.counters(gateway.ask(running.COUNTERS))
        assert {key.replica for key in report(counted, None, {}).in_flight} == {item.name for item in three}


def test_picked_replica_in_a_slot_gets_its_requests(version: Binary, twelve: list[Replica]) -> None:
    port, three = free_pair(), twelve[-3:]
    pick = {"otherwise": "round_robin", "prefix": "off", "session": ["x-session-id"], "timeout": "10s"}
    keys = {"balance": {"algorithm": "pick", "pick": pick}, "affinity": {"cookie": "lb"}}
    control = {"control": {"picker": {"bind": f"127.0.0.1:{port}"}}}
    with (
        scripted_picker(port, lambda asked: asked.headers["x-session-id"]),
        driven(version, {**fleet(three, keys), **control}, slots=9) as gateway,
    ):
        worker = gateway.worker
        gateway.change({**fleet(twelve, keys), **control, "listeners": gateway.listeners})
        eventually(lambda: gateway.apply().done)
        for name in NAMES:
            request = Request(headers=(("x-session-id", name),))
            eventually(lambda request=request, name=name: gateway.load(2, 1, request=request).shares() == {name: 1.0})  # type: ignore[misc]
        assert gateway.worker == worker

"""A frozen Envoy delays no other Envoy, and no updates accumulate for it."""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import pytest

from tests.support.processes.control import ControlPlane, XdsEnvoy, controlling, driven
from tests.support.processes.driving import synced
from tests.support.processes.fleet import fleet_of
from tests.support.processes.waiting import eventually

_PUSHES = 5
_WARM, _MANY = 60, 60
_MANY_HOSTS = 1000
_MAX_GROWTH = 6.0
"""MB: less than the memory for `_MANY` versions of a pool of `_MANY_HOSTS` replicas."""


def _targets(weight: int, hosts: int) -> str:
    """Return the targets file of replicas without requests: the first has this weight, and the others change with
    it."""
    weights = [weight, *(1 + (number + weight) % 50 for number in range(1, hosts))]
    addresses = (f"127.1.{number // 250}.{number % 250 + 1}:9" for number in range(hosts))
    pairs = zip(addresses, weights, strict=True)
    return json.dumps([{"targets": [address], "labels": {"weight": str(each)}} for address, each in pairs])


def _push_seconds(control: ControlPlane, envoys: list[XdsEnvoy], weight: int, hosts: int = 100) -> float:
    """Write new weights, and return the seconds until all of these Envoys have accepted them."""
    before = [envoy.stat("cluster.pool.update_success") for envoy in envoys]
    path = control.files / "targets.json"
    new_file = path.with_name(".targets.new")
    new_file.write_text(_targets(weight, hosts))
    new_file.replace(path)
    start = time.monotonic()
    eventually(lambda: _have_updated(envoys, before))
    return time.monotonic() - start


def _have_updated(envoys: list[XdsEnvoy], before: list[int]) -> bool:
    now = [envoy.stat("cluster.pool.update_success") for envoy in envoys]
    return all(after > was for was, after in zip(before, now, strict=True))


def _discovered_fleet() -> dict[str, Any]:
    pool = {"discovery": {"file": {"path": "targets.json"}}, "balance": {"algorithm": "round_robin"}}
    return fleet_of(pool, **driven("one", "two", "frozen"))


def test_frozen_envoy_delays_no_other_and_catches_up() -> None:
    with (
        controlling(_discovered_fleet(), files={"targets.json": _targets(1, 100)}) as control,
        control.envoy("one", ["one"]) as one,
        control.envoy("two", ["two"], delta=False) as two,
        control.envoy("frozen", ["frozen"]) as frozen,
    ):
        synced(control)
        others = [one, two]
        seconds_before = statistics.median(_push_seconds(control, others, 2 + number) for number in range(_PUSHES))
        synced(control)
        pushes_before = control.metrics()['lbctl_xds_pushes_total{type="eds"}']

        frozen.freeze()
        seconds = statistics.median(_push_seconds(control, others, 100 + number) for number in range(_PUSHES))
        pushes = control.metrics()['lbctl_xds_pushes_total{type="eds"}'] - pushes_before
        assert seconds < 3 * seconds_before + 2
        assert pushes == 2 * _PUSHES + 1, "the frozen Envoy is sent one response, and then no other"
        assert control.proxies["frozen"]["state"] == "STALE"

        frozen.thaw()
        synced(control)
        assert frozen.weights("pool") == one.weights("pool") == two.weights("pool")


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_memory_stays_flat_with_two_frozen_envoys() -> None:
    with (
        controlling(_discovered_fleet(), files={"targets.json": _targets(1, _MANY_HOSTS)}) as control,
        control.envoy("one", ["one"]) as one,
        control.envoy("two", ["two"], delta=False) as two,
        control.envoy("frozen", ["frozen"]) as frozen,
    ):
        synced(control)
        for number in range(_WARM):
            _push_seconds(control, [one], 2 + number, _MANY_HOSTS)
        two.freeze()
        frozen.freeze()
        memory_before = control.memory
        for number in range(_MANY):
            _push_seconds(control, [one], 200 + number, _MANY_HOSTS)
        assert control.memory - memory_before < _MAX_GROWTH

"""An Envoy that stands still among others: they get what is new as fast as before, and nothing piles up for it."""

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

_HOSTS = 1000
_PUSHES = 8
_WARM, _MANY = 60, 60
_KEPT = 6.0
"""MB: less than so many contents of the pool take when they are kept."""


def _targets(weight: int) -> str:
    """Replicas that nobody asks anything; the first has this weight, and the others have moved too."""
    weights = [weight, *(1 + (number + weight) % 50 for number in range(1, _HOSTS))]
    places = (f"127.1.{number // 250}.{number % 250 + 1}:9" for number in range(_HOSTS))
    each = zip(places, weights, strict=True)
    return json.dumps([{"targets": [place], "labels": {"weight": str(moved)}} for place, moved in each])


def _pushed(control: ControlPlane, envoys: list[XdsEnvoy], weight: int) -> float:
    """Seconds from the written file to the moment at which all of these have taken the new weights."""
    before = [envoy.stat("cluster.pool.update_success") for envoy in envoys]
    path = control.files / "targets.json"
    beside = path.with_name(".targets.new")
    beside.write_text(_targets(weight))
    beside.replace(path)
    begun = time.monotonic()
    eventually(lambda: _all_later(envoys, before), pause=0.02)
    return time.monotonic() - begun


def _all_later(envoys: list[XdsEnvoy], before: list[int]) -> bool:
    now = [envoy.stat("cluster.pool.update_success") for envoy in envoys]
    return all(after > was for was, after in zip(before, now, strict=True))


def _fleet() -> dict[str, Any]:
    pool = {"discovery": {"file": {"path": "targets.json"}}, "balance": {"algorithm": "round_robin"}}
    return fleet_of(pool, **driven("one", "two", "still"))


def test_an_envoy_that_stands_still_delays_nobody_and_gets_the_newest_when_it_goes_on() -> None:
    with (
        controlling(_fleet(), files={"targets.json": _targets(1)}) as control,
        control.envoy("one", ["one"]) as one,
        control.envoy("two", ["two"], delta=False) as two,
        control.envoy("still", ["still"]) as still,
    ):
        synced(control)
        others = [one, two]
        alone = statistics.median(_pushed(control, others, 2 + number) for number in range(_PUSHES))
        synced(control)
        sent = control.metrics()['lbctl_xds_pushes_total{type="eds"}']

        still.freeze()
        among = statistics.median(_pushed(control, others, 100 + number) for number in range(3 * _PUSHES))
        pushes = control.metrics()['lbctl_xds_pushes_total{type="eds"}'] - sent
        assert among < 3 * alone + 0.5
        assert pushes == 2 * 3 * _PUSHES + 1, "the one that stands still is sent one response, and then no other"
        assert control.proxies["still"]["state"] == "STALE"

        still.thaw()
        synced(control)
        assert still.weights("pool") == one.weights("pool") == two.weights("pool")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_memory_stays_flat_over_many_pushes_though_two_envoys_stand_still() -> None:
    with (
        controlling(_fleet(), files={"targets.json": _targets(1)}) as control,
        control.envoy("one", ["one"]) as one,
        control.envoy("two", ["two"], delta=False) as two,
        control.envoy("still", ["still"]) as still,
    ):
        synced(control)
        for number in range(_WARM):
            _pushed(control, [one], 2 + number)
        two.freeze()
        still.freeze()
        held = control.memory
        for number in range(_MANY):
            _pushed(control, [one], 200 + number)
        assert control.memory - held < _KEPT

"""Without a control plane Envoys keep serving. When it returns, they get the changes of the meantime."""

from __future__ import annotations

import time

import pytest

from tests.support.processes.driven_envoys import DrivenEnvoys
from tests.support.processes.driving import loaded, synced
from tests.support.processes.fleet import pool_of
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually

_RECONNECTED = 20.0
"""Seconds within which Envoys reconnect, although they retry less and less often."""


@pytest.mark.parametrize("seconds", [4, pytest.param(30, marks=pytest.mark.nightly)])
def test_envoys_serve_alone_and_follow_again(driven_envoys: DrivenEnvoys, seconds: float) -> None:
    control, envoys = driven_envoys.control, driven_envoys.envoys
    with replicas("a", "b") as (a, b):
        driven_envoys.serve(fleet := driven_envoys.fleet_of([a]))
        with loaded(envoys, 50) as loads:
            control.kill()
            killed = time.monotonic()
            time.sleep(seconds / 2)
            control.write({**fleet, "pools": {"pool": pool_of([b])}})
            time.sleep(seconds / 2)
            assert [set(load.since(killed).by_replica) for load in loads] == [{"a"}] * 2
            control.start()
            eventually(lambda: [set(envoy.hosts("pool")) for envoy in envoys] == [{b.address}] * 2, _RECONNECTED, 0.1)
            synced(control)
            moved = time.monotonic()
            assert [set(load.since(moved).by_replica) for load in loads] == [{"b"}] * 2

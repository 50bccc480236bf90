"""No control plane for half a minute: Envoys go on, and what has changed meanwhile is theirs soon after its return."""

from __future__ import annotations

import time

import pytest

from tests.support.processes.control import controlling, driven
from tests.support.processes.driving import BOTH, both, loaded, synced
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually

_AWAY = 30.0
_SOON = 10.0


@pytest.mark.slow
def test_envoys_go_on_alone_and_follow_again_within_two_seconds() -> None:
    with (
        replicas("a", "b") as (a, b),
        controlling(fleet := fleet_of([a], **driven(*BOTH))) as control,
        both(control) as envoys,
        loaded(envoys, 100) as loads,
    ):
        synced(control)
        control.kill()
        time.sleep(_AWAY / 2)
        control.write({**fleet, "pools": {"pool": pool_of([b])}})
        time.sleep(_AWAY / 2)
        assert [set(load.load.by_replica) for load in loads] == [{"a"}] * 2
        control.start()
        eventually(lambda: [set(envoy.hosts("pool")) for envoy in envoys] == [{b.address}] * 2, _SOON, 0.02)
        synced(control)
        now = time.monotonic()
        time.sleep(0.5)
        assert [set(load.since(now).by_replica) for load in loads] == [{"b"}] * 2

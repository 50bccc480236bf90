"""A replica flaps between idle and full, with Envoy, HAProxy and nginx, and the default settings of a fleet."""

from __future__ import annotations

import time

import pytest

from tests.support.processes.all_proxies import INTERVAL, pool_by_default, three
from tests.support.processes.client import Client
from tests.support.processes.engines import engines
from tests.support.processes.http1 import Request
from tests.support.processes.waiting import eventually

_DOWN, _UP = 0.5, 0.1
"""`max_step`, relative to the capacity."""
_SLOTS = 32
_OTHERS = Request("POST", "/v1/completions?n=60&q=400", timeout=60.0)


@pytest.mark.timeout(240)
def test_flapping_replica_moves_less_than_a_step_per_interval() -> None:
    """The load that fills it does not pass through the proxies."""
    decisions: list[tuple[float, float]] = []

    with engines(*"abcd", slots=_SLOTS) as members, three(pool_by_default(members)) as site:

        def watch(seconds: float) -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                decisions.append((time.monotonic(), site.decided()["a"]))
                time.sleep(0.5)

        with site.load(8) as loads:
            time.sleep(4 * INTERVAL)
            for _ in range(4):
                with Client(members[0].port).steady(24, _OTHERS):
                    eventually(lambda: members[0].in_flight >= _SLOTS, 20)
                    watch(7)
                watch(6)
        for load in loads.values():
            load.load.assert_no_failure()
            assert load.load.shares()["a"] > 0.25 / 2
    for at, weight in decisions:
        moves = [later - weight for then, later in decisions if 0 < then - at < 0.9 * INTERVAL]
        assert min(moves, default=0.0) > -_DOWN, decisions
        assert max(moves, default=0.0) < _UP, decisions

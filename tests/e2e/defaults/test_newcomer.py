"""A replica joins, with Envoy, HAProxy and nginx, and the default settings of a fleet."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest

from tests.support.processes.all_proxies import STRETCH, got, pool_by_default, three, until
from tests.support.processes.engines import Engine, engines
from tests.support.processes.fleet import entry

_COLD = 30.0
"""Seconds in which it runs at a quarter of its speed."""
_RATE = 16.0
_ANSWER_TIMEOUT = 20.0
"""Seconds until a client gives up: the longest response takes as long on the cold replica when it is alone there."""
_FAIR = 1 / 5


@pytest.mark.timeout(240)
def test_cold_new_replica_causes_no_timeouts() -> None:
    with ExitStack() as stack:
        members = stack.enter_context(engines(*"abcd", slots=48))
        cold = stack.enter_context(Engine("e", speed=0.25, slots=48))
        site = stack.enter_context(three(pool_by_default(members)))
        with site.load(_RATE, scale=0.5, patience=_ANSWER_TIMEOUT) as loads:
            until(time.monotonic() + STRETCH)
            joined = time.monotonic()
            site.change(replicas=[*site.fleet["pools"]["pool"]["replicas"], entry(cold)])
            until(joined + _COLD)
            cold.speed = 1.0
            warm = time.monotonic()
            until(warm + 50)
        for name, load in loads.items():
            load.load.assert_no_failure()
            assert got(load.load, joined, warm).share("e") < _FAIR / 2, name
            assert got(load.load, warm + 30).share("e") > _FAIR / 2, name

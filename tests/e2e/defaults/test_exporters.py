"""All exporters are killed, with Envoy, HAProxy and nginx, and the default settings of a fleet."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest

from tests.support.processes.all_proxies import INTERVAL, STALE_AFTER, pool_by_default, three
from tests.support.processes.engines import engines
from tests.support.processes.exporters import Exporter
from tests.support.processes.waiting import eventually


@pytest.mark.timeout(300)
def test_killed_exporters_zero_no_weight_and_fail_no_request() -> None:
    """One replica is slow before, so that there is a changed weight to return from."""
    with ExitStack() as stack:
        members = stack.enter_context(engines(*"abcd", slots=48))
        exporters = [stack.enter_context(Exporter(item)) for item in members]
        members[0].speed = 0.5
        site = stack.enter_context(three(pool_by_default(members, exporters)))
        with site.load(6) as loads:
            eventually(lambda: site.decided()["a"] < 0.7, 40, 0.5)
            for exporter in exporters:
                exporter.refuse()
            killed = time.monotonic()
            while time.monotonic() < killed + 2 * STALE_AFTER + 8 * INTERVAL:
                weights = [site.decided(), *site.weights(members).values()]
                assert all(each.keys() == set("abcd") and min(each.values()) > 0 for each in weights), weights
                time.sleep(0.5)
            assert set(site.decided().values()) == {1.0}
        for load in loads.values():
            load.load.assert_no_failure()

"""Durations do not depend on changes of the machine's clock."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from lbctl.control.overrides import Override
from lbctl.runtime import log
from lbctl.runtime.clock import SteadyClock
from lbctl.serve import wiring
from lbctl.serve.api.endpoints import Endpoints
from lbctl.serve.metrics.instruments import Metrics
from lbctl.serve.operator import overrides
from lbctl.serve.settings import Options
from lbctl.store.saved import SavedState
from lbctl.store.sqlite import SqliteStore
from lbctl.xds.protocol.node_status import NodeStatus
from tests.support.fleets import fleet_of, load_fleet, replica
from tests.support.publishing import publish_files


def test_clock_ignores_jumps_and_follows_slewing() -> None:
    wall, elapsed = [5000.0], [100.0]
    clock = SteadyClock(lambda: wall[0], lambda: elapsed[0])
    assert clock.now() == 5000.0
    wall[0], elapsed[0] = 5010.5, 110.0
    assert clock.now() == 5010.5
    for jump in (3600.0, -7200.0):
        wall[0] += jump
        assert clock.now() == 5010.5
    elapsed[0] += 30.0
    assert clock.now() == 5040.5
    wall[0] = 5041.0
    assert clock.now() == 5041.0


def test_drain_survives_a_clock_that_is_set_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(overrides, "_EXPIRY_INTERVAL", 0.01)
    machine = time.time
    loaded = load_fleet(tmp_path, fleet_of([replica("a"), replica("b", "127.0.0.1:10")]))

    async def drained_after_an_hour() -> list[str]:
        options, nodes, metrics = Options((str(tmp_path / "fleet.yaml"),)), NodeStatus(), Metrics()
        state = SavedState(SqliteStore.open(tmp_path / "state"), log.warn)
        await state.lead(log.warn)
        wall = [machine]
        endpoints = Endpoints(options, nodes, metrics)
        restored = await wiring.restore(state)
        clock = SteadyClock(lambda: wall[0]())
        services = wiring.build(wiring.Inputs(options, endpoints, metrics, nodes, state, restored, clock=clock))
        await publish_files(services.live, loaded)
        work = asyncio.create_task(services.overrides.run())
        await services.overrides.put(Override("drain", "pool", "a"), None, 1800, "anna")
        wall[0] = lambda: machine() + 3600
        await asyncio.sleep(0.1)
        in_force = [item.replica for item in services.live.inputs.overrides]
        work.cancel()
        await state.close()
        return in_force

    assert asyncio.run(drained_after_an_hour()) == ["a"]
    assert "this machine's clock was changed" in caplog.text

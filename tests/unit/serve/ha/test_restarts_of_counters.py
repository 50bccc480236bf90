"""A restart of counters reaches the leader even if an announcement fails."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

from lbctl.runtime import log
from lbctl.serve import wiring
from lbctl.serve.api.endpoints import Endpoints
from lbctl.serve.ha.sharing import PoolSharing
from lbctl.serve.metrics.instruments import Metrics
from lbctl.serve.settings import Options
from lbctl.serve.telemetry.samples import MemberSamples
from lbctl.store.memory import MemoryStore
from lbctl.store.saved import SavedState
from lbctl.targets.load import Loaded
from lbctl.xds.protocol.node_status import NodeStatus
from tests.unit.serve.telemetry.test_samples import PLANS, REPORT


async def ignore(_loaded: Loaded, _can_be_served: bool) -> None:
    """Open no endpoints."""


def test_restart_of_counters_is_announced_until_it_is_stored(tmp_path: Path) -> None:
    async def work() -> list[bool]:
        options, nodes, metrics = Options((str(tmp_path),)), NodeStatus(), Metrics()
        state = SavedState(MemoryStore(), log.warn)
        await state.lead(log.warn)
        endpoints = Endpoints(options, nodes, metrics)
        services, _ = await wiring.build_from(options, endpoints, metrics, nodes, state, ignore)
        telemetry = services.telemetry
        telemetry.rest()
        sharing = PoolSharing("cp-2", telemetry, state, 5.0, time.monotonic, lambda _all, _own: None)
        leader, announced = MemberSamples("cp-2"), []
        for number, (restarted, reaches_store) in enumerate([(True, False), (False, True), (False, True)]):
            telemetry._scraped(replace(REPORT, at=REPORT.at + number, restarted=restarted))
            (report,) = leader.read(await sharing.samples(), time.monotonic(), PLANS)
            announced.append(report.restarted)
            if reaches_store:
                sharing.renewed(time.monotonic())
        return announced

    assert asyncio.run(work()) == [True, True, False]

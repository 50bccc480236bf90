"""A restart of counters reaches the leader even if an announcement fails."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from prometheus_client import CollectorRegistry

from lbctl.runtime import log
from lbctl.serve.ha.sharing import PoolSharing
from lbctl.serve.metrics.latency import LatencyMetrics
from lbctl.serve.telemetry.control_loop import ControlLoop
from lbctl.serve.telemetry.reports import ScrapeReport
from lbctl.serve.telemetry.samples import MemberSamples
from lbctl.signals.plan import ScrapePlan
from lbctl.store.memory import MemoryStore
from lbctl.store.saved import SavedState
from tests.unit.serve.telemetry.test_samples import PLANS, REPORT


class Scraping:
    """A scraper whose reports the test makes."""

    plans: Mapping[tuple[str, str], ScrapePlan] = PLANS
    pools = tuple({pool for pool, _ in PLANS})

    def __init__(self) -> None:
        self.receive: Callable[[ScrapeReport], None] = lambda _: None

    def patience(self, _pool: str) -> float:
        return math.inf

    def share(self, _owns: Callable[[str], bool]) -> None:
        pass

    def report_to(self, receive: Callable[[ScrapeReport], None]) -> None:
        self.receive = receive


def test_restart_of_counters_is_announced_until_it_is_stored() -> None:
    async def work() -> list[bool]:
        state = SavedState(MemoryStore(), log.warn)
        scraping, loop = Scraping(), ControlLoop(lambda: None, LatencyMetrics(CollectorRegistry(), time.monotonic))
        sharing = PoolSharing("cp-2", scraping, loop, state, 5.0, time.monotonic, lambda _all, _own: None)  # type: ignore[arg-type]
        sharing.adopt('["cp-2", ["cp-2"]]')
        leader, announced = MemberSamples("cp-2"), []
        for number, (restarted, reaches_store) in enumerate([(True, False), (False, True), (False, True)]):
            scraping.receive(replace(REPORT, at=REPORT.at + number, restarted=restarted))
            (report,) = leader.read(await sharing.samples(), time.monotonic(), PLANS)
            announced.append(report.restarted)
            if reaches_store:
                sharing.renewed(time.monotonic())
        return announced

    assert asyncio.run(work()) == [True, True, False]

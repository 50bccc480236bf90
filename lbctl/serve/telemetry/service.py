"""Telemetry at work: the scraper's reports go to the control loop, what that decides goes to the proxies and the state.

A decision is published on its own, by endpoints alone, as soon as what was decided before it is out: many decisions of
one moment are one edition. What was decided outlives the process: weights for a minute, since evidence ages; who was
out until it has shown anew that it is well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from lbctl.control.loop_output import LoopOutput, controlled
from lbctl.ir.pools import Pool
from lbctl.serve import log
from lbctl.serve.fleet.publisher import PublishedFleet, Publisher
from lbctl.serve.fleet.reconciler import Reconciler
from lbctl.serve.guard import Guard, Work
from lbctl.serve.metrics.latency import LatencyMetrics
from lbctl.serve.state.interface import StoreError
from lbctl.serve.state.saved import SavedState
from lbctl.serve.telemetry.control_loop import ControlLoop, InFlightOf
from lbctl.serve.telemetry.scraper import Scraper
from lbctl.signals.plan import ScrapePlan, scrape_plan

_WEIGHTS_KEPT = 60.0
"""Seconds for which weights of an earlier process count."""
_KEEP = 1.0
_KEEP_AGAIN = 20.0
"""Seconds between two writes: of what has changed, of what still holds."""


async def earlier(state: SavedState, now: float) -> LoopOutput:
    """What an earlier process had decided, as far as it still counts. `now`: seconds since the epoch. Raises
    StoreError."""
    known = await state.loop_output()
    if known is None:
        return LoopOutput()
    live, at = known
    return live if now - at <= _WEIGHTS_KEPT else replace(live, weights={})


class Telemetry:
    """`kept`: what was decided before this process."""

    def __init__(
        self,
        publisher: Publisher,
        changes: Reconciler,
        stages: LatencyMetrics,
        state: SavedState,
        kept: LoopOutput,
        in_flight: InFlightOf,
        guard: Guard,
    ) -> None:
        self.loop = ControlLoop(self._decided, stages, kept, in_flight=in_flight)
        self.scraper = Scraper(self.loop.report, guard)
        self._publisher = publisher
        self._changes = changes
        self._stages = stages
        self._state = state
        self._news = asyncio.Event()
        self._pools: tuple[Pool, ...] | None = None
        self._written: tuple[LoopOutput, float] = (kept, 0.0)
        publisher.decide(kept)
        publisher.subscribe("telemetry", self.follow)

    def follow(self, served: PublishedFleet) -> None:
        """The fleet from now on."""
        topology = served.composed.whole.topology
        self.loop.follow(topology)
        pools = controlled(topology)
        if pools != self._pools:
            self._pools = pools
            self.scraper.watch(_watched(pools))

    def eject(self, ejected: Mapping[str, frozenset[str]]) -> None:
        """Pool → replicas that active checks hold out."""
        self.loop.eject(ejected)

    def tasks(self) -> Mapping[str, Work]:
        """Task → what it runs, for as long as the process lives."""
        return {
            "scraper": self.scraper.run,
            "control loop": self.loop.run,
            "publish decisions": self._publish,
            "save decisions": self._keep,
        }

    async def keep(self) -> None:
        """Writes what has been decided, for a restart."""
        live, now = self.loop.live, time.time()
        if self._is_worth_writing(live, now):
            try:
                await self._state.save_loop_output(live, now)
                self._written = (live, now)
            except StoreError as error:
                log.error(f"not kept for a restart: {error}")

    def _decided(self) -> None:
        self._news.set()

    async def _publish(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            self._stages.sending(self.loop.sampled)
            self._publisher.decide(self.loop.live)
            await self._changes.refresh("signals", keep=False)
            self._stages.sent()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(_KEEP)
            await self.keep()

    def _is_worth_writing(self, live: LoopOutput, now: float) -> bool:
        before, at = self._written
        return live != before or (now - at >= _KEEP_AGAIN and bool(live.weights or live.ejections))


def _watched(pools: Iterable[Pool]) -> list[ScrapePlan]:
    found = (scrape_plan(pool, replica) for pool in pools for replica in pool.replicas)
    return [item for item in found if item is not None]

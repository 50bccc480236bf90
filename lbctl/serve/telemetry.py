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

from lbctl.ir.pools import Pool
from lbctl.serve import log
from lbctl.serve.changes import Changes
from lbctl.serve.live import Live, controlled
from lbctl.serve.loop import Loop
from lbctl.serve.publisher import Publisher, Served
from lbctl.serve.scrape import Scraper
from lbctl.serve.stages import Stages
from lbctl.serve.store import Store, StoreError
from lbctl.signals.plan import Watched, watched

_WEIGHTS_KEPT = 60.0
"""Seconds for which weights of an earlier process count."""
_KEEP = 1.0
_KEEP_AGAIN = 20.0
"""Seconds between two writes: of what has changed, of what still holds."""


def earlier(store: Store, now: float) -> Live:
    """What an earlier process had decided, as far as it still counts. `now`: seconds since the epoch. StoreError"""
    known = store.live()
    if known is None:
        return Live()
    live, at = known
    return live if now - at <= _WEIGHTS_KEPT else replace(live, weights={})


class Telemetry:
    """`kept`: what was decided before this process. `store`: None where nothing is kept."""

    def __init__(self, publisher: Publisher, changes: Changes, stages: Stages, store: Store | None, kept: Live) -> None:
        self.loop = Loop(self._decided, stages, kept)
        self.scraper = Scraper(self.loop.report)
        self._publisher = publisher
        self._changes = changes
        self._stages = stages
        self._store = store
        self._news = asyncio.Event()
        self._pools: tuple[Pool, ...] | None = None
        self._written: tuple[Live, float] = (kept, 0.0)
        publisher.live = kept
        publisher.followers.append(self.follow)

    def follow(self, served: Served) -> None:
        """The fleet from now on."""
        topology = served.whole.topology
        self.loop.follow(topology)
        pools = controlled(topology)
        if pools != self._pools:
            self._pools = pools
            self.scraper.watch(_watched(pools))

    def eject(self, ejected: Mapping[str, frozenset[str]]) -> None:
        """Pool → replicas that active checks hold out."""
        self.loop.ejected = ejected

    async def run(self) -> None:
        """Until it is cancelled, or one of its parts fails."""
        async with asyncio.TaskGroup() as group:
            for work in (self.scraper.run(), self.loop.run(), self._publish(), self._keep()):
                group.create_task(work)

    def keep(self) -> None:
        """Writes what has been decided, for a restart. Blocks."""
        live, now = self.loop.live, time.time()
        if self._store is not None and self._is_worth_writing(live, now):
            try:
                self._store.keep_live(live, now)
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
            self._publisher.live = self.loop.live
            await self._changes.refresh("signals", keep=False)
            self._stages.sent()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(_KEEP)
            await asyncio.to_thread(self.keep)

    def _is_worth_writing(self, live: Live, now: float) -> bool:
        before, at = self._written
        return live != before or (now - at >= _KEEP_AGAIN and bool(live.weights or live.out))


def _watched(pools: Iterable[Pool]) -> list[Watched]:
    found = (watched(pool, replica) for pool in pools for replica in pool.replicas)
    return [item for item in found if item is not None]

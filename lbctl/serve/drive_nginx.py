"""Drives an nginx of this machine. What nginx lacks is done here: its active checks and its slow start.

A new snapshot is compared with the last: nginx is reloaded for what it would serve otherwise, and for nothing else. The
driver decides when (`lbctl.apply.nginx_pace`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from lbctl.apply.nginx import Applied, NginxDriver, prepared
from lbctl.apply.nginx_ramp import Ramps
from lbctl.compile.files import files_on_disk
from lbctl.ir.proxies import Proxy, Reload
from lbctl.ir.snapshot import Snapshot
from lbctl.serve import log
from lbctl.serve.hands import Standing, State
from lbctl.serve.publisher import Served
from lbctl.targets.load import Loaded
from lbctl.targets.prepare import Prepared

_PACE = 0.25
_LOOK = 5.0
"""Seconds between two looks whether it runs."""
_STATES: Mapping[str, State] = {"applied": "SYNCED", "same": "SYNCED", "refused": "FAILING", "absent": "FAILING"}


class NginxHand:
    """One proxy of the fleet that is `driven`. `sick`: pool → replicas that active checks hold out."""

    def __init__(self, proxy: Proxy, sick: Callable[[], Mapping[str, frozenset[str]]]) -> None:
        self.proxy = proxy
        self.standing = Standing()
        self._sick = sick
        self._files: Mapping[str, Path] = {}
        self._driver = NginxDriver(proxy, lambda path: self._files.get(path))
        self._interval = (proxy.reload or Reload(())).min_interval / 1000
        self._ramps = Ramps()
        self._served: Served | None = None
        self._asked: tuple[Loaded, Prepared] | None = None
        self._version = ""
        self._news = asyncio.Event()
        self._seen = False
        self._absent = False
        self._warned = ""

    def want(self, served: Served) -> None:
        self._served = served
        self._news.set()

    def look_again(self) -> None:
        """What active checks say has changed."""
        self._news.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._driver.run(self._took))
            group.create_task(self._follow())
            group.create_task(self._watch())

    async def _watch(self) -> None:
        """An nginx that has ended says nothing, and reads the file by itself when it comes back."""
        while True:
            await asyncio.sleep(_LOOK)
            there = await self._driver.seen()
            if there and self._absent and self._asked is not None:
                self._driver.want(self._asked[1], "health")
            elif self._seen and not there and self.standing.state == "SYNCED":
                self._absent = True
                self.standing = replace(
                    self.standing, state="FAILING", words=self._says(f"no nginx runs with {self.proxy.config}")
                )
            self._seen = there

    def _says(self, words: str) -> str:
        if words and words != self._warned:
            log.warn("a proxy does not have all of it", proxy=self.proxy.name, why=words)
        self._warned = words
        return words

    async def _follow(self) -> None:
        pause: float | None = None
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), pause)
            self._news.clear()
            served = self._served
            if served is not None:
                pause = await self._ask(served)
            await asyncio.sleep(_PACE)

    async def _ask(self, served: Served) -> float | None:
        """Hands the driver what nginx should run now. Seconds until that changes by itself."""
        snapshot, clock = _without(served.edition.snapshot, self._sick()), time.monotonic()
        self._ramps = self._ramps.follow(snapshot, clock)
        live = self._ramps.apply(snapshot, clock, self._interval)
        newest = await asyncio.to_thread(prepared, self.proxy, served.loaded, live)
        before, self._asked = self._asked, (served.loaded, newest)
        self._version = served.edition.version
        if before is None or before[0] is not served.loaded or before[1].view != newest.view:
            self._files = files_on_disk(served.loaded.source)
            self._driver.want(newest)
            self.standing = replace(self.standing, state="WAITING", words=self._when)
        elif self.standing.state == "SYNCED":
            self.standing = replace(self.standing, version=self._version)
        changes = self._ramps.next_change(snapshot, clock, self._interval)
        return None if changes is None else max(0.0, changes - time.monotonic())

    @property
    def _when(self) -> str:
        return f"its next reload is due; for weights there is one every {self._interval:g} s at most"

    def _took(self, applied: Applied) -> None:
        before = self.standing
        state = _STATES.get(applied.outcome, "WAITING")
        words = applied.words
        if applied.behind:
            state = "FAILING"
            words = words or "the newest fleet is refused; the one before runs with the newest weights"
        self._absent = applied.outcome == "absent"
        self.standing = Standing(
            state,
            self._version if state == "SYNCED" else before.version,
            self._says(words),
            before.reloads + (applied.outcome in ("applied", "unconfirmed")),
            applied.finishing,
            applied.at,
        )
        if applied.outcome == "applied":
            log.event("a proxy was reloaded", proxy=self.proxy.name, seconds=round(applied.seconds, 3))


def _without(snapshot: Snapshot, sick: Mapping[str, frozenset[str]]) -> Snapshot:
    if not sick:
        return snapshot
    there = {pool: snapshot.drained.get(pool, frozenset()) | names for pool, names in sick.items()}
    return replace(snapshot, drained={**snapshot.drained, **there})

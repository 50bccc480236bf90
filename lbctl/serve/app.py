"""`lbctl serve`, put together: files in, editions out to the proxies, an API beside it.

Start: the state is taken (a second process waits for it), the files are read; where they are bad, the last good fleet
of the state serves. Only then does anybody listen for proxies, so that none is ever answered with less than a whole
fleet. SIGHUP reads the files again, SIGTERM ends it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from lbctl import __version__
from lbctl.model.fleet import Source
from lbctl.serve import log
from lbctl.serve.by_hand import ByHand
from lbctl.serve.changes import Changes
from lbctl.serve.doors import CannotListenError, Doors
from lbctl.serve.driven import driven
from lbctl.serve.driving import Driving
from lbctl.serve.gauges import Gauges
from lbctl.serve.in_flight import InFlight
from lbctl.serve.live import Live
from lbctl.serve.metrics import Metrics
from lbctl.serve.overview import NO_FLEET, Overview
from lbctl.serve.publisher import Publisher
from lbctl.serve.settings import Options, legible, settings
from lbctl.serve.store import Kept, Store, StoreError
from lbctl.serve.telemetry import Telemetry, earlier
from lbctl.serve.watch import Watch
from lbctl.targets.load import Loaded
from lbctl.xds.ledger import Ledger

__all__ = ["App", "Options", "run"]

_LONGEST_END = 9.5
"""Seconds after which the process ends whatever still hangs."""
_TICK = 1.0
"""Seconds between two looks at the deadlines of drains."""
_TURN = 0.001
"""Seconds for which a thread that reads files may keep the one that serves waiting; else it is five times that."""


def run(options: Options) -> int:
    """The exit code. Logs to standard error until then."""
    handler = log.start(sys.stderr)
    sys.setswitchinterval(_TURN)
    try:
        return asyncio.run(App(options).run())
    finally:
        log.stop(handler)


class App:
    """One process of the control plane."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._metrics = Metrics()
        self._ledger = Ledger()
        self._doors = Doors(options, self._ledger, self._metrics)
        self._stop = asyncio.Event()
        self._shut_out = False
        self._asked: set[asyncio.Task[None]] = set()
        self._store: Store | None = None
        self._publisher: Publisher
        self._changes: Changes
        self._overview: Overview
        self._telemetry: Telemetry
        self._by_hand: ByHand
        self._driving: Driving
        self._in_flight = InFlight()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ask_to_stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload_soon)
        work = loop.create_task(self._work(), name="work")
        stop = loop.create_task(self._stop.wait(), name="stop")
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            return int(self._shut_out)
        except CannotListenError:
            return 1
        except StoreError as error:
            log.error(str(error))
            return 1
        finally:
            await self._shut_down(work, stop)

    def _ask_to_stop(self, number: signal.Signals) -> None:
        """The first one ends it in good order, a second one at once."""
        log.event("ending", signal=number.name)
        self._stop.set()
        for each in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)
        last_resort = threading.Timer(_LONGEST_END, os._exit, (1,))
        last_resort.daemon = True
        last_resort.start()

    async def _shut_down(self, *tasks: asyncio.Task[Any]) -> None:
        if hasattr(self, "_overview"):
            self._overview.ending = True
        for task in (*tasks, *self._asked):
            task.cancel()
        await asyncio.gather(*tasks, *self._asked, return_exceptions=True)
        await self._doors.close()
        if hasattr(self, "_publisher"):
            await self._publisher.discover.stop()
        if self._store is not None:
            if hasattr(self, "_telemetry"):
                self._telemetry.keep()
            self._store.close()
        log.event("ended")

    # ── The start ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _work(self) -> None:
        await self._begin()
        await _all_of(
            self._follow_files(),
            self._follow_discovery(),
            self._follow_drains(),
            self._telemetry.run(),
            self._by_hand.run(),
            self._driving.run(),
            self._in_flight.run(),
        )

    async def _begin(self) -> None:
        options = self._options
        log.event("starting", version=__version__, paths=",".join(options.paths), dry_run=options.dry_run or None)
        kept, drains = await self._take_state()
        self._publisher = Publisher(self._metrics, drains)
        if kept is not None:
            self._publisher.discover.seed(kept.discovered)
        self._watch = Watch(options.paths)
        self._changes = Changes(options.paths, self._publisher, self._watch, self._metrics, self._store, self._open)
        kept_live = await self._kept_live()
        self._telemetry = Telemetry(self._publisher, self._changes, self._metrics.stages, self._store, kept_live)
        kept_by_hand = await asyncio.to_thread(self._store.overrides) if self._store else ()
        self._by_hand = ByHand(self._publisher, self._changes, self._telemetry, self._store, kept_by_hand)
        self._driving = Driving(self._telemetry.eject, dry_run=options.dry_run)
        self._publisher.followers.append(self._driving.follow)
        self._publisher.followers.append(self._in_flight.follow)
        self._telemetry.loop.in_flight = self._in_flight.of
        self._publisher.beside = driven
        self._metrics.registry.register(Gauges(self._publisher, self._telemetry, time.monotonic))
        self._overview = Overview(
            options, self._doors, self._publisher, self._changes, self._ledger, self._metrics, self._telemetry,
            self._by_hand, self._driving,
        )  # fmt: skip
        await self._changes.begin(kept)
        gc.freeze()
        gc.enable()
        if self._publisher.served is None:
            log.error(NO_FLEET)
            if self._doors.opened.api is None:
                await self._open_api(await asyncio.to_thread(legible, options.paths))

    async def _take_state(self) -> tuple[Kept | None, Mapping[tuple[str, str], float]]:
        """A dry run takes nothing: the state may be another process's. StoreError."""
        if self._options.dry_run:
            return None, {}
        place = self._options.state
        if place is None:
            place = str(settings(self._options, await asyncio.to_thread(legible, self._options.paths)).state)
        store = await asyncio.to_thread(Store.open, Path(place))
        self._store = store
        await store.lock(log.warn)
        for note in store.notes:
            log.warn(note)
        return await asyncio.to_thread(store.last_fleet), await asyncio.to_thread(store.drains)

    async def _kept_live(self) -> Live:
        return await asyncio.to_thread(earlier, self._store, time.time()) if self._store else Live()

    async def _open(self, loaded: Loaded, built: bool) -> None:
        """The API once the files could be read, the proxies' port once there is an edition."""
        try:
            if self._doors.opened.api is None:
                await self._open_api(loaded.source)
            if built and not self._options.dry_run:
                self._publisher.open(await self._doors.open_xds(loaded.source, self._publisher.earlier))
        except CannotListenError:
            self._shut_out = True
            self._stop.set()
            raise

    async def _open_api(self, source: Source | None) -> None:
        await self._doors.open_api(source, self._overview, own_token=self._store is not None)

    # ── What goes on ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _follow_files(self) -> None:
        async for _ in self._watch.changes():
            await self._reload()

    async def _follow_discovery(self) -> None:
        async for _ in self._publisher.discover.changes():
            await self._changes.refresh("discovery")

    async def _follow_drains(self) -> None:
        while True:
            due = self._publisher.next_due()
            await asyncio.sleep(_TICK if due is None else min(_TICK, max(0.05, due - time.time())))
            if due is not None and due <= time.time():
                await self._changes.refresh("the deadline of a drain")

    def _reload_soon(self) -> None:
        log.event("asked to read the files again", signal="SIGHUP")
        if not hasattr(self, "_changes"):  # it has not read them yet
            return
        task = asyncio.get_running_loop().create_task(self._reload_as_asked())
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    async def _reload_as_asked(self) -> None:
        await self._reload()
        again, reading = self._doors.offer_again(), self._changes.reading
        log.event("the files were read", result=reading.result if reading else None, offered_again=again or None)

    async def _reload(self) -> None:
        await self._changes.reload()
        served = self._publisher.served
        keys = self._doors.restart_needed(served.loaded.source) if served else []
        if keys:
            log.warn("changed in the files, and taken at the next start alone", keys=",".join(keys))
        self._doors.renew()


async def _all_of(*works: Coroutine[Any, Any, None]) -> None:
    """Until the first of them ends; none dies in silence."""
    tasks = [asyncio.get_running_loop().create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

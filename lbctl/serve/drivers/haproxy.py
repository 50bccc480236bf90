"""The driver for an HAProxy on this machine.

The driver applies each published fleet immediately. Every few seconds, it also compares the fleet with HAProxy's state,
because another program may have reloaded HAProxy. Failed attempts are retried with back-off.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from lbctl.apply.haproxy.applied import HaproxyResult
from lbctl.apply.haproxy.driver import HaproxyUpdater
from lbctl.apply.permit import Permit, always
from lbctl.base.errors import reason_of
from lbctl.compile.files import files_on_disk
from lbctl.control.compose import ForProxy
from lbctl.control.health import ASLEEP
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import View
from lbctl.runtime import log
from lbctl.serve.drivers.base import DriverStatus, Ejected, as_served
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.targets.haproxy import TARGET
from lbctl.targets.prepare import Prepared, prepare

_MIN_INTERVAL = 0.2
"""Minimum time between two attempts, in seconds."""
_CHECK_INTERVAL = 5.0
"""Seconds between comparisons with HAProxy's state."""
_FIRST_RETRY = 1.0
_MAX_RETRY_INTERVAL = 15.0
"""Maximum time before a failed attempt is retried, in seconds."""


class HaproxyDriver:
    """A Driver for one HAProxy."""

    def __init__(self, proxy: Proxy, ejected: Ejected, permit: Permit = always) -> None:
        del ejected  # HAProxy checks its replicas itself
        self.proxy = proxy
        self.status = DriverStatus()
        self.composed: ForProxy | None = None  # HAProxy performs its own health checks and slow start
        self._files: Mapping[str, Path] = {}
        self._driver = HaproxyUpdater(proxy, lambda path: self._files.get(path), permit=permit)
        self.accepted: View | None = None
        self._served: PublishedFleet | None = None
        self._prepared: tuple[PublishedFleet, Prepared] | None = None
        self._warned = ""
        self._news = asyncio.Event()
        self._failures = 0

    def update(self, served: PublishedFleet) -> None:
        """From now on, apply this fleet to the proxy."""
        self._served = served
        self._news.set()

    def checks_changed(self) -> None:
        """Do nothing, because HAProxy checks its replicas itself."""

    async def run(self) -> None:
        """Drive the proxy until the task is cancelled."""
        pause: float | None = None
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._news.wait()
                self._news.clear()
                served = self._served
                if served is not None:
                    pause = self._record(served, await self._apply(served))
                await asyncio.sleep(_MIN_INTERVAL)
        finally:
            await self._driver.close()

    async def _apply(self, served: PublishedFleet) -> HaproxyResult:
        snapshot = served.composed.snapshot
        if self._prepared is None or self._prepared[0] is not served:
            proxy = as_served(self.proxy, served)
            prepared = await asyncio.to_thread(prepare, TARGET, served.loaded.compiled, proxy, snapshot)
            self._prepared = served, prepared
            self._files = files_on_disk(served.loaded.source)
        composed = served.composed
        removed = frozenset((pool, name) for pool, names in composed.removed.items() for name in names)
        ejected = {
            (pool, name): reasons[0]
            for pool, by_replica in composed.ejected.items()
            for name, reasons in by_replica.items()
            if reasons
        } | {(pool, name): ASLEEP for pool, names in composed.asleep.items() for name in names}
        try:
            return await self._driver.apply(self._prepared[1], removed, snapshot.addresses, ejected)
        except OSError as error:
            return HaproxyResult(False, failure=f"{error.filename or self.proxy.name}: {reason_of(error)}")

    def _record(self, served: PublishedFleet, applied: HaproxyResult) -> float:
        """Record an attempt's result in the status and the log, and return the seconds until the next attempt."""
        before = self.status
        reason = _reason(applied)
        self._failures = 0 if applied.done or applied.retry_after is not None else self._failures + 1
        problem = "" if (applied.due and reason == applied.due) or _waits_for_reload(applied) else reason
        self.status = DriverStatus(
            "SYNCED" if applied.done else "FAILING" if applied.failure or applied.refused else "WAITING",
            served.cached_snapshot.version if applied.done else before.version,
            reason,
            before.reloads + applied.reloaded,
            len(applied.leaving),
            time.time(),
        )
        if problem and problem != self._warned:
            log.warn("a proxy is not in sync", proxy=self.proxy.name, why=problem)
        if applied.done and (not before.version or self._warned):
            log.event("managing a proxy", proxy=self.proxy.name, version=self.status.version)
        self._warned = problem or ("" if applied.done else self._warned)
        if applied.reloaded:
            log.event("a proxy was reloaded", proxy=self.proxy.name)
        if applied.retry_after is not None:
            return applied.retry_after
        return (
            min(_MAX_RETRY_INTERVAL, _FIRST_RETRY * 2.0 ** (self._failures - 1)) if self._failures else _CHECK_INTERVAL
        )


def _waits_for_reload(applied: HaproxyResult) -> bool:
    """Return whether HAProxy is merely waiting for a scheduled reload, which does not warrant a warning."""
    wrong = applied.failure or applied.complaints or applied.refused or applied.wrong
    return bool(applied.reload) and applied.retry_after is not None and not wrong


def _reason(applied: HaproxyResult) -> str:
    if applied.failure:
        return applied.failure
    if applied.complaints:
        return applied.complaints[0].message
    if applied.refused:
        return f"HAProxy rejected {applied.refused[0].command!r}: {applied.refused[0].message}"
    if applied.done:
        return ""
    return applied.wrong or "; ".join(applied.reload) or applied.due

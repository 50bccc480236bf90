"""The driver for an nginx on this machine.

The driver also provides features that nginx lacks: active checks and slow start. Each new snapshot is compared with the
last one, and nginx is reloaded only if its configuration changes. `lbctl.apply.nginx.reload_schedule` determines when
to reload.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from lbctl.apply.nginx.driver import NginxResult, NginxUpdater, prepared
from lbctl.apply.nginx.reload_schedule import offset_of
from lbctl.apply.permit import Permit, always
from lbctl.compile.files import files_on_disk
from lbctl.control.compose import ForProxy, for_proxy
from lbctl.control.overrides import Overrides
from lbctl.control.slow_start import Ramps
from lbctl.ir.proxies import Proxy, Reload
from lbctl.ir.snapshot import View
from lbctl.runtime import log
from lbctl.serve.drivers.base import DriverStatus, Ejected, State, as_served
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.targets.load import Loaded
from lbctl.targets.prepare import Prepared

_MIN_INTERVAL = 0.25
"""Minimum time between two configuration changes, in seconds."""
_CHECK_INTERVAL = 5.0
"""Seconds between checks of whether nginx is running."""
_STATES: Mapping[str, State] = {"applied": "SYNCED", "same": "SYNCED", "refused": "FAILING", "absent": "FAILING"}


def next_reload(interval: float, seconds: float | None, now: float) -> str:
    """Explain why a configuration has not been applied yet, and when the next reload is due.

    `interval`: the minimum time between reloads for weights, in seconds. `seconds`: the time until the next reload;
    None if unknown. `now` is in seconds since the epoch.
    """
    at = ""
    if seconds is not None and 0 < seconds < math.inf:
        at = datetime.fromtimestamp(now + seconds, UTC).strftime(" at %Y-%m-%dT%H:%M:%SZ")
    return (
        f"its next reload is due{at}; it reloads at most every {interval:g} s for weights, and waits longer for small "
        "measured changes"
    )


class NginxDriver:
    """A Driver for one nginx. `ejected` maps each pool to the replicas that are failing their active checks.

    `permit` is called before each change.
    """

    def __init__(self, proxy: Proxy, ejected: Ejected, permit: Permit = always) -> None:
        self.proxy = proxy
        self.status = DriverStatus()
        self._ejected = ejected
        self._files: Mapping[str, Path] = {}
        self._driver = NginxUpdater(proxy, lambda path: self._files.get(path), permit=permit)
        self._interval = (proxy.reload or Reload(())).min_interval / 1000
        self.composed: ForProxy | None = None
        self._overrides: Overrides = ()
        self._served: PublishedFleet | None = None
        self._requested: tuple[Loaded, Prepared] | None = None
        self._wanted: tuple[tuple[View, str], ...] = ()
        """The views requested since the last attempt began, each with its snapshot's version, newest last."""
        self._news = asyncio.Event()
        self._running = False
        self._unseen = False
        self._warned = ""

    @property
    def accepted(self) -> View | None:
        """The view that nginx most recently accepted."""
        return self._driver.accepted

    def update(self, served: PublishedFleet) -> None:
        """From now on, apply this fleet to the proxy."""
        self._served = served
        self._news.set()

    def checks_changed(self) -> None:
        """Apply changes in the ejections by the active checks."""
        self._news.set()

    async def run(self) -> None:
        """Drive the proxy until the task is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._driver.run(self._record))
            group.create_task(self._request_each())
            group.create_task(self._watch())

    async def _watch(self) -> None:
        """Monitor whether nginx is running.

        nginx does not report when it stops, and it rereads the file when it restarts.
        """
        while True:
            await asyncio.sleep(_CHECK_INTERVAL)
            running = await self._driver.is_visible()
            if running and self._unseen and self._requested is not None:
                self._driver.want(self._requested[1], "health")
            elif self._running and not running and self.status.state == "SYNCED":
                self._unseen = True
                reason = self._logged(f"no running nginx uses {self.proxy.config}")
                self.status = replace(self.status, state="FAILING", reason=reason)
            self._running = running

    def _logged(self, reason: str) -> str:
        if reason and reason != self._warned:
            log.warn("a proxy is not in sync", proxy=self.proxy.name, why=reason)
        self._warned = reason
        return reason

    async def _request_each(self) -> None:
        pause: float | None = None
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._news.wait()
            self._news.clear()
            served = self._served
            if served is not None:
                pause = await self._request(served)
            await asyncio.sleep(_MIN_INTERVAL)

    async def _request(self, served: PublishedFleet) -> float | None:
        """Request the current configuration for nginx. Return the seconds until slow start changes it."""
        ramps = self.composed.ramps if self.composed else Ramps()
        composed = for_proxy(served.composed, self._ejected(), ramps, time.monotonic(), self._interval)
        evidence = self.composed is not None and composed.factors == self.composed.factors
        evidence = evidence and served.composed.overrides == self._overrides
        self.composed, self._overrides = composed, served.composed.overrides
        proxy = as_served(self.proxy, served)
        newest = await asyncio.to_thread(prepared, proxy, served.loaded, composed.snapshot)
        before, self._requested = self._requested, (served.loaded, newest)
        version = served.cached_snapshot.version
        if before is None or before[0] is not served.loaded or before[1].view != newest.view:
            self._files = files_on_disk(served.loaded.source)
            self._wanted = (*self._wanted, (newest.view, version))
            proxies = served.composed.whole.topology.proxies
            offset = offset_of(proxy, proxies, socket.gethostname(), self._interval)
            self._driver.want(newest, evidence=evidence, offset=offset)
            self.status = replace(self.status, state="WAITING", reason=self._next_reload)
        else:
            self._wanted = (*self._wanted[:-1], (self._wanted[-1][0], version))
            if self.status.state == "SYNCED":
                self.status = replace(self.status, version=version)
        change_at = composed.next_change
        return None if change_at is None else max(0.0, change_at - time.monotonic())

    @property
    def _next_reload(self) -> str:
        return next_reload(self._interval, self._driver.seconds_until_due(), time.time())

    def _record(self, applied: NginxResult) -> None:
        """Record an attempt's result in the status and the log.

        A newer view may have been requested in the meantime; if so, it waits for the next attempt.
        """
        before, accepted = self.status, self._driver.accepted
        state = _STATES.get(applied.outcome, "WAITING")
        reason = applied.reason
        if applied.behind:
            state = "FAILING"
            reason = reason or (
                "nginx rejected the newest fleet; it is running the previous fleet with the newest weights"
            )
        self._unseen = applied.outcome in ("absent", "unconfirmed")
        reason, version = self._logged(reason), before.version
        if state == "SYNCED":
            version = next((version for view, version in reversed(self._wanted) if view == accepted), version)
            if self._wanted[-1][0] != accepted:
                state, reason = "WAITING", self._next_reload
        self._wanted = self._wanted[-1:]
        self.status = DriverStatus(
            state,
            version,
            reason,
            before.reloads + (applied.outcome in ("applied", "unconfirmed")),
            applied.finishing,
            applied.at,
        )
        if applied.outcome == "applied":
            log.event("a proxy was reloaded", proxy=self.proxy.name, seconds=round(applied.seconds, 3))

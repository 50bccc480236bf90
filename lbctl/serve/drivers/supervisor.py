"""Drives the proxies that need a driver, using the same fleet as the Envoys.

Each driver has its own task, so that a driver that hangs, fails or is rejected does not delay the others. A proxy
without a driver is left unchanged, and its row states the reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path

from lbctl.compile.files import files_on_disk
from lbctl.control.check_thresholds import CheckState
from lbctl.control.compose import ForProxy
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot, View, view
from lbctl.runtime import log
from lbctl.runtime.guard import Guard, end_tasks
from lbctl.serve.drivers.base import Driver, DriverRow, DriverStatus
from lbctl.serve.drivers.eligibility import needs_driver, undriven
from lbctl.serve.drivers.registry import DriverKind, driver_kind
from lbctl.serve.drivers.runner import DriverRunner
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.health.health_check import HealthChecker, Key

_FIRST_CHECKS = 3.0
"""Maximum number of seconds that a proxy without active checks waits for the first results of lbctl's checks."""


class DriverSupervisor:
    """Runs a driver for each proxy that needs one, and active checks for proxies that lack them."""

    def __init__(
        self,
        guard: Guard,
        *,
        dry_run: bool,
        permit: Callable[[], bool] = lambda: True,
    ) -> None:
        """`permit` returns whether this process may currently change proxies."""
        self._permit = permit
        self._dry_run = dry_run
        self._guard = guard
        self._since = time.time()
        self._files: Mapping[str, Path] = {}
        self._health_checker = HealthChecker(self._checked, lambda path: self._files.get(path), guard)
        self._runners: dict[str, DriverRunner] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._undriven: dict[str, tuple[Proxy, str]] = {}
        self._served: PublishedFleet | None = None
        self._news = asyncio.Event()

    def use_fleet(self, served: PublishedFleet) -> None:
        """From now on, drive this fleet's proxies."""
        self._served = served
        self._news.set()

    def rows(self) -> list[DriverRow]:
        """Return the status of each proxy that needs a driver, by name."""
        rows = {name: DriverRow.of(item.proxy, item.status, self._since) for name, item in self._runners.items()}
        for name, (proxy, reason) in self._undriven.items():
            rows[name] = DriverRow.of(proxy, DriverStatus("NOT DRIVEN", reason=reason), self._since)
        return [rows[name] for name in sorted(rows)]

    def composed(self) -> dict[str, ForProxy]:
        """Snapshots composed for a single proxy, by proxy; all other proxies get the published snapshot."""
        return {name: own for name, item in self._runners.items() if (own := item.composed) is not None}

    def accepted(self) -> dict[str, View]:
        """Maps each proxy to the part of its separate snapshot that it has applied."""
        return {name: view for name, item in self._runners.items() if (view := item.accepted) is not None}

    def connected(self) -> set[str]:
        """Return the names of the driven proxies that are currently running."""
        return {item.proxy for item in self.rows() if item.connected}

    def ejected(self) -> Mapping[str, frozenset[str]]:
        """Map each pool to the replicas ejected by the active checks."""
        return self._health_checker.out

    @property
    def checks(self) -> Mapping[Key, CheckState]:
        """Maps each (pool, replica) pair to the result of lbctl's active checks."""
        return self._health_checker.states

    async def run(self) -> None:
        """Drive the proxies until the task is cancelled."""
        await self._apply_each(self._apply)

    async def check_picked(self) -> None:
        """Check the replicas in pools that use the picker, without driving proxies, until the task is cancelled.

        Followers need this, because their pickers must not use failing replicas.
        """
        await self._apply_each(lambda served: self._check(served, [], wait=False))

    async def _apply_each(self, apply: Callable[[PublishedFleet], Awaitable[None]]) -> None:
        checks = self._guard.start("active health checks", self._health_checker.run)
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                if self._served is not None:
                    await apply(self._served)
        finally:
            await end_tasks([checks, *self._tasks.values()])
            self._tasks, self._runners = {}, {}
            self._news.set()

    async def _apply(self, served: PublishedFleet) -> None:
        proxies = {item.name: item for item in needs_driver(served.composed.whole.topology)}
        undriven_reasons = {
            name: "this is a dry run" if self._dry_run else undriven(item) for name, item in proxies.items()
        }
        known = self._undriven
        self._undriven = {name: (proxies[name], reason) for name, reason in undriven_reasons.items() if reason}
        for name, (proxy, reason) in self._undriven.items():
            if name not in known and driver_kind(proxy.kind) is None:
                log.event("a proxy is not driven", proxy=name, why=reason)
        wanted = {name: item for name, item in proxies.items() if not undriven_reasons[name]}
        for name in [name for name, runner in self._runners.items() if not _same(wanted.get(name), runner.proxy)]:
            await self._stop(name)
        kinds = {name: kind for name, item in wanted.items() if (kind := driver_kind(item.kind)) is not None}
        new = wanted.keys() - self._runners.keys()
        for name in sorted(new):
            self._start(wanted[name], kinds[name])
        unchecked = [name for name, kind in kinds.items() if kind.active_checks]
        for name in self._runners.keys() - unchecked:
            self._runners[name].update(served)
        await self._check(served, [wanted[name] for name in unchecked], wait=not new.isdisjoint(unchecked))
        for name in unchecked:
            self._runners[name].update(served)

    async def _check(self, served: PublishedFleet, proxies: list[Proxy], *, wait: bool) -> None:
        """Check pools that use the picker, and pools of proxies without active checks.

        `wait`: whether to wait for the first results.
        """
        pools = [] if self._dry_run else _reached(served.composed.snapshot, proxies)
        self._files = files_on_disk(served.loaded.source) if pools else {}
        self._health_checker.use_pools(pools, served.composed.snapshot.secrets)
        if wait:
            await self._health_checker.first(_FIRST_CHECKS)
        for pool, reason in self._health_checker.problems.items():
            log.warn("active checks are not possible; the replicas keep their states", pool=pool, why=reason)

    def _start(self, proxy: Proxy, kind: DriverKind) -> None:
        def create() -> Driver:
            return kind.driver(proxy, lambda: self._health_checker.out, self._permit)

        runner = DriverRunner(proxy, create, self._permit)
        self._runners[proxy.name] = runner
        self._tasks[proxy.name] = self._guard.start("driver", runner.run, runner.restarts_in, proxy=proxy.name)

    async def _stop(self, name: str) -> None:
        task = self._tasks.pop(name)
        del self._runners[name]
        await end_tasks([task])

    def _checked(self, key: Key, state: CheckState) -> None:
        pool, replica = key
        message = "a replica fails its active checks" if state.out else "a replica passes its active checks"
        log.event(message, pool=pool, replica=replica, why=state.reason or None)
        for runner in self._runners.values():
            runner.checks_changed()


def _reached(snapshot: Snapshot, proxies: list[Proxy]) -> list[Pool]:
    """Return the pools used by these proxies, without unresolved names, and all pools with the `pick` algorithm.

    Proxies ignore their active checks when they send a picked request, and few proxies report the check results.
    """
    pools = {pool.name: pool for pool in snapshot.topology.pools if pool.balance.pick is not None}
    for proxy in proxies:
        pools |= view(snapshot, proxy).pools
    return [pools[name] for name in sorted(pools)]


def _same(new: Proxy | None, driven: Proxy) -> bool:
    """Return whether `driven`'s driver can also drive `new`, which may differ only in its custom lines."""
    return new is not None and replace(new, include=()) == replace(driven, include=())

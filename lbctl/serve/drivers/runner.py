"""Runs one proxy's driver.

Until a failed driver is restarted, the status shows the reason and the time of the restart.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import NoReturn

from lbctl.control.compose import ForProxy
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import View
from lbctl.runtime.guard import end_tasks
from lbctl.serve.drivers.base import Driver, DriverStatus
from lbctl.serve.fleet.publisher import PublishedFleet

_UNSURE = 0.1
"""Seconds between checks of whether proxies may be changed again."""


class DriverEndedError(Exception):
    """A driver returned, although drivers must run until they are cancelled."""


class DriverRunner:
    """`create` returns a new driver. A `Guard` restarts `run` and calls `restarts_in` before each pause."""

    def __init__(self, proxy: Proxy, create: Callable[[], Driver], permit: Callable[[], bool] = lambda: True) -> None:
        """`permit` returns whether this process may currently change proxies; updates wait until it may."""
        self.proxy = proxy
        self._permit = permit
        self._create = create
        self._driver: Driver | None = None
        self._status = DriverStatus()
        self._reloads = 0
        self._error = ""
        self._served: PublishedFleet | None = None
        self._is_new = self._checks_changed = False
        self._updated = asyncio.Event()

    @property
    def status(self) -> DriverStatus:
        """The driver's status, or the reason why there is no driver and the time at which the next one will start."""
        if self._driver is None:
            return self._status
        status = self._driver.status
        return replace(status, reloads=self._reloads + status.reloads)

    @property
    def composed(self) -> ForProxy | None:
        """The snapshot composed only for this proxy; None if the proxy gets the published snapshot unchanged."""
        return self._driver.composed if self._driver is not None else None

    @property
    def accepted(self) -> View | None:
        """The part of `composed` that the proxy has applied; None before the first one, or if `composed` is None."""
        return self._driver.accepted if self._driver is not None else None

    def update(self, served: PublishedFleet) -> None:
        """From now on, apply this fleet to the proxy."""
        self._served, self._is_new = served, True
        self._updated.set()

    def checks_changed(self) -> None:
        """Apply changes in the ejections by the active checks."""
        self._checks_changed = True
        self._updated.set()

    async def run(self) -> NoReturn:
        """Drive the proxy with a new driver until the task is cancelled.

        Raises the driver's exception, or DriverEndedError if the driver returns.
        """
        try:
            await self._drive()
        except Exception as error:
            self._error = _name(error)
            raise

    def restarts_in(self, seconds: float) -> None:
        """Report that the driver has failed and that `run` will be called again after this pause."""
        last, now = self.status, time.time()
        at = datetime.fromtimestamp(now + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        reason = f"its driver failed ({self._error}; see the log); a new one starts at {at}"
        self._status = replace(last, state="FAILING", reason=reason, at=now)
        self._reloads, self._driver = last.reloads, None

    async def _drive(self) -> NoReturn:
        self._driver = self._create()
        self._is_new = self._served is not None
        self._updated.set()
        tasks = [asyncio.create_task(self._driver.run()), asyncio.create_task(self._feed(self._driver))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            raise _error_of(tasks)
        finally:
            await end_tasks(tasks)

    async def _feed(self, driver: Driver) -> None:
        """Pass updates to the driver in a separate task, because a driver may raise an exception here too."""
        while True:
            await self._updated.wait()
            while not self._permit():
                await asyncio.sleep(_UNSURE)
            self._updated.clear()
            if self._is_new and self._served is not None:
                self._is_new = False
                driver.update(self._served)
            if self._checks_changed:
                self._checks_changed = False
                driver.checks_changed()


def _error_of(tasks: list[asyncio.Task[None]]) -> BaseException:
    """Return the exception of the first task that has ended."""
    errors = (task.exception() for task in tasks if task.done() and not task.cancelled())
    return next((error for error in errors if error is not None), None) or DriverEndedError("it ended unexpectedly")


def _name(error: BaseException) -> str:
    """Return the class name of the exception (the first one in a group); its message may contain a secret."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return type(error).__name__

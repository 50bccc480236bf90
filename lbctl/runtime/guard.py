"""Keeps long-lived tasks running: a failed task is logged by name, counted, and restarted with back-off.

An asyncio task that raises an exception fails silently until it is awaited. Every control plane task that should run as
long as the process therefore runs through `Guard.keep`. Exceptions listed as `fatal` end the process with a nonzero
exit code.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any, NoReturn

from lbctl.runtime import log

FIRST_PAUSE = 1.0
MAX_PAUSE = 60.0
"""Maximum pause in seconds before a failed task is restarted.

The pause doubles with each failure. The pause is reset after the task has run for `MAX_PAUSE`.
"""

Work = Callable[[], Awaitable[None]]


def _uncounted(_task: str) -> None:
    """Ignore a failure, for tests and commands without metrics."""


def _unannounced(_seconds: float) -> None:
    """Ignore a task's restart."""


_AGAIN = 3.0
"""Seconds before a task that is still running is cancelled again."""


async def end_tasks(tasks: Iterable[asyncio.Task[Any]], again: float | None = None) -> None:
    """Cancel tasks and wait until they have ended. Exceptions raised by the tasks are ignored.

    A task that continues is cancelled again, because a client library that is connecting at that moment may mistake the
    first cancellation for a connection failure and swallow it. `again` is the number of seconds until the next
    cancellation; tasks that have no work to finish need less than the default.
    """
    ending = set(tasks)
    while ending:
        for task in ending:
            task.cancel()
        ended, ending = await asyncio.wait(ending, timeout=_AGAIN if again is None else again)
        await asyncio.gather(*ended, return_exceptions=True)


async def until_one_ends(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Wait until the first task ends, end the others, and raise the error of the task that ended first."""
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        await end_tasks(tasks)


class Guard:
    """Calls `failed` with the task's name on each failure, and `started` when it begins to keep a task running.

    `fatal` exceptions are raised and end the process.
    """

    def __init__(
        self,
        failed: Callable[[str], None] = _uncounted,
        fatal: tuple[type[Exception], ...] = (),
        first_pause: float = FIRST_PAUSE,
        longest_pause: float = MAX_PAUSE,
        expected: tuple[type[Exception], ...] = (),
        started: Callable[[str], None] = _uncounted,
    ) -> None:
        """Create a guard without any tasks.

        `expected` exceptions are logged with their message but without a traceback.
        """
        self._failed = failed
        self._fatal = fatal
        self._first_pause = first_pause
        self._longest_pause = longest_pause
        self._expected = expected
        self._started = started

    async def keep(
        self, task: str, work: Work, restarts_in: Callable[[float], None] = _unannounced, **fields: str
    ) -> NoReturn:
        """Run `work` until it is cancelled, restarting it whenever it raises an exception or returns.

        `task` is a fixed name that becomes a metric label; `fields` distinguish between several instances in the log.
        `restarts_in` is called after each failure with the seconds until the next start. Raises fatal exceptions.
        """
        self._started(task)
        pause = self._first_pause
        while True:
            begun = time.monotonic()
            try:
                await work()
                log.error("a task ended unexpectedly; restarting it", task=task, **fields, seconds=pause)
            except self._fatal:
                raise
            except self._expected as error:
                log.error("a task failed; restarting it", task=task, why=str(error), **fields, seconds=pause)
            except Exception:  # noqa: BLE001 -- the other tasks continue, and this one is restarted
                log.failure("a task failed; restarting it", task=task, **fields, seconds=pause)
            healthy = time.monotonic() - begun > self._longest_pause
            self._failed(task)
            restarts_in(pause)
            await asyncio.sleep(pause)
            pause = self._first_pause if healthy else min(2 * pause, self._longest_pause)

    def start(
        self, task: str, work: Work, restarts_in: Callable[[float], None] = _unannounced, **fields: str
    ) -> asyncio.Task[NoReturn]:
        """Run `keep` as a named task on the running event loop.

        The caller must keep a reference to it and cancel it.
        """
        detail = " ".join([task, *fields.values()])
        return asyncio.get_running_loop().create_task(self.keep(task, work, restarts_in, **fields), name=detail)

    def call(self, task: str, callback: Callable[[], None], **fields: str) -> None:
        """Call `callback` once. An exception is logged and counted, so that later callbacks are still called."""
        try:
            callback()
        except Exception:  # noqa: BLE001 -- later callbacks are still called
            self.record("a task failed", task, **fields)

    def record(self, message: str, task: str, **fields: str) -> None:
        """Log the exception being handled, with this message, and count it as a failure of the task."""
        log.failure(message, task=task, **fields)
        self._failed(task)

"""Saves a picker's affinity memory in a separate thread, because picks must not wait for a disk.

While a write lasts, new entries wait in memory. If it lasts longer than `RESPONSE_TIMEOUT`, the picker reports that its
memory is not saved, until a write ends in time or nothing waits. The thread is a daemon, so that the process can end
during a write that never returns.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from lbctl.base.errors import reason_of
from lbctl.pick.affinity import AffinityChanges
from lbctl.picker.saved_memory import SavedMemory
from lbctl.runtime import log

RESPONSE_TIMEOUT = 5.0
"""Duration of a write, in seconds, after which the memory is reported as not saved."""
MAX_WAITING_NUMBERS = 3_000_000
"""Maximum number of integers in the waiting changes: three per entry of a full memory."""
_MAX_PARTS = 600
"""Maximum number of changes that wait for a slow disk: one minute's worth of changes."""
_GENERATIONS = 2
"""Number of generations that have a file."""
_NO_RESPONSE = "the disk is not responding"


class MemorySaver:
    """Saves changes to `files`, one write at a time. If a write fails, only the entries in that write are lost."""

    def __init__(self, files: SavedMemory) -> None:
        self._files = files
        self._waiting: list[AffinityChanges] = []
        """Changes that have not started to be written."""
        self._writing: asyncio.Future[None] | None = None
        self._written: Sequence[AffinityChanges] = ()
        """The changes of the write in progress."""
        self._is_late = False
        """Whether the write in progress has taken longer than `RESPONSE_TIMEOUT`."""
        self._log = log.LastingFailure("the picker can save its memory again")
        self.failure = ""
        """Reason why the memory is not being saved; empty if it is being saved."""

    def add(self, changes: Iterable[AffinityChanges]) -> None:
        """Save these changes in the next write. If too many changes are waiting, their entries are dropped."""
        self._waiting += changes
        if len(self._waiting) > _MAX_PARTS or sum(map(_numbers, self._waiting)) > MAX_WAITING_NUMBERS:
            self._waiting = _without_entries(self._waiting)

    async def write(self) -> None:
        """Write all changes, or continue to wait for the current write, for at most `RESPONSE_TIMEOUT`."""
        if self._writing is None:
            if not self._waiting:
                return
            try:
                self._writing = _in_thread(partial(self._files.write, self._waiting))
            except RuntimeError as error:  # the process cannot start another thread
                self._failed(reason_of(error))
                return
            self._written, self._waiting, self._is_late = self._waiting, [], False
        await asyncio.wait([self._writing], timeout=RESPONSE_TIMEOUT)
        if not self._writing.done():
            self._is_late = True
            self._failed(_NO_RESPONSE)
            return
        writing, self._writing = self._writing, None
        written, self._written = self._written, ()
        if (cause := writing.exception()) is not None:
            self._failed(reason_of(cause))
            self._waiting = [*_without_entries(written), *self._waiting]
        elif not self._is_late:
            self.failure = ""
            self._log.succeeded()
        elif not self._waiting:
            self.failure = ""

    async def finish(self, seconds: float) -> None:
        """Write all changes, for this number of seconds at most. Log the number of entries that are lost."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                if self._writing is not None:
                    await self.write()
                await self.write()
        if lost := sum(len(part.entries) // 3 for part in (*self._written, *self._waiting)):
            log.warn("the picker stops without saving all of its memory", entries=lost)

    def _failed(self, reason: str) -> None:
        self.failure = reason
        self._log.failed(f"the picker cannot save its memory in {self._files.directory}: {reason}")


def _numbers(part: AffinityChanges) -> int:
    return len(part.entries) + len(part.forgotten)


def _without_entries(changes: Iterable[AffinityChanges]) -> list[AffinityChanges]:
    """Return changes without entries, one per generation that has a file.

    They are kept because later entries refer to the replica numbers.
    """
    kept: dict[int, AffinityChanges] = {}
    for part in changes:
        known = kept.setdefault(part.generation, AffinityChanges(part.generation, part.began))
        known.replicas.update(part.replicas)
        known.forgotten += part.forgotten
    return list(kept.values())[-_GENERATIONS:]


def _in_thread(call: Callable[[], None]) -> asyncio.Future[None]:
    """Call the function in a daemon thread. Return a future that completes when it returns."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def work() -> None:
        end: Callable[[], None] = partial(future.set_result, None)
        try:
            call()
        except BaseException as error:  # noqa: BLE001 -- re-raised in the event loop
            end = partial(future.set_exception, error)
        with suppress(RuntimeError):  # the event loop has ended in the meantime
            loop.call_soon_threadsafe(end)

    threading.Thread(target=work, name="memory", daemon=True).start()
    return future

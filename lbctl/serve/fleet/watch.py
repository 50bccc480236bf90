"""Decides when to reread a fleet's files: once per change, as soon as the change has settled.

Only the files' contents matter: an operating system event merely triggers a comparison, and without events the files
are compared every few seconds. A file that has only been touched is not considered changed. A change has settled when
no file has changed for `settle` seconds, or after at most `max_settle` seconds. The reader must therefore detect
half-written files itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from lbctl.base.paths import is_link
from lbctl.runtime.guard import Guard
from lbctl.serve.fleet.file_events import FileEvents, WatchedDirectories, watched_directories
from lbctl.serve.fleet.fingerprints import Fingerprints, fleet_files

_FALLBACK_POLL = 1.0
"""Seconds between comparisons if the operating system does not report events."""
_NOT_READ = "unknown"
"""Placeholder for the digest of a file that has not been read yet."""


class FleetWatcher:
    """Watches the files given by the PATH arguments and the files in `watch_files`.

    `changes` must have only one consumer.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        settle: float = 0.02,
        max_settle: float = 2.0,
        poll: float = 5.0,
        inotify: bool = True,
        guard: Guard | None = None,
    ) -> None:
        """Read the files for the first time. All durations are in seconds.

        A change has settled after `settle` without a further change, or after at most `max_settle`. The files are
        compared every `poll` seconds, even without an event. `inotify=False` means that operating system events are not
        used.
        """
        self._paths = tuple(paths)
        self._settle = settle
        self._max_settle = max_settle
        self._poll = poll
        self._inotify = inotify
        self._files: frozenset[Path] = frozenset()
        self._fingerprints = Fingerprints()
        self._reported = self._fingerprints.of(fleet_files(self._paths))
        self._wake = asyncio.Event()
        self._file_events = FileEvents(self._wake.set, guard or Guard())

    @property
    def polling(self) -> str:
        """The reason why the files are only polled; empty if the operating system reports events."""
        return self._file_events.unavailable if self._inotify else "inotify is not used"

    def watch_files(self, files: Iterable[Path]) -> None:
        """Watch exactly these files in addition to the fleet's files.

        If `files` is a mapping, it contains each file's digest at the time it was read (from
        `fingerprints.Fingerprints`). A file whose digest differs is considered changed.
        """
        digests = files if isinstance(files, Mapping) else {}
        fleet = {file: digest for file, digest in self._reported.items() if file not in self._files}
        self._reported = fleet | {file: digests.get(file, self._reported.get(file, _NOT_READ)) for file in files}
        self._files = frozenset(files)
        self._wake.set()

    async def changes(self) -> AsyncIterator[None]:
        """Yield once per settled change; simultaneous changes are combined."""
        try:
            while True:
                await self._watch_directories()
                if await self._read_digests() != self._reported and await self._settled():
                    yield
                else:
                    await self._wait()
        finally:
            await self._file_events.close()

    async def _settled(self) -> bool:
        """Wait up to `max_settle` seconds for the files to settle, and return whether any contents have changed."""
        deadline = time.monotonic() + self._max_settle
        digests = await self._read_digests()
        while time.monotonic() < deadline:
            await asyncio.sleep(self._settle)
            before, digests = digests, await self._read_digests()
            if digests == before:
                break
        changed = digests != self._reported
        self._reported = digests
        return changed

    async def _read_digests(self) -> dict[Path, str]:
        """Return the digests of all files. A file that is read for the first time is not considered changed."""
        digests = await asyncio.to_thread(self._fingerprint)
        unread = [file for file, digest in self._reported.items() if digest == _NOT_READ and file in digests]
        self._reported |= {file: digests[file] for file in unread}
        return digests

    def _fingerprint(self) -> dict[Path, str]:
        return self._fingerprints.of([*fleet_files(self._paths), *self._files])

    async def _watch_directories(self) -> None:
        """Watch the directories before the files are read, so that changes in between are not missed.

        If a directory is replaced while its watch is being registered, a second check detects this.
        """
        while self._inotify and await self._file_events.watch(await asyncio.to_thread(self._directories)):
            pass

    def _directories(self) -> WatchedDirectories:
        links = (file for file in fleet_files(self._paths) if is_link(file))
        return watched_directories([*(Path(path) for path in self._paths if path != "-"), *links, *self._files])

    async def _wait(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(min(self._poll, _FALLBACK_POLL) if self.polling else self._poll):
                await self._wake.wait()
        self._wake.clear()

"""When to read the files again: once after each change that has come to rest.

What counts is the content: the system's word only wakes this, and without it the files are looked at every few seconds.
A file that was only touched is no change. A change has come to rest when nothing has moved for `settle`; where
something always moves, `longest` is waited and no more, so that whoever reads must still tell a whole file from half of
one. Nothing is read here for its meaning.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from lbctl.serve.fleet.file_events import FileEvents, WatchedDirectories, around
from lbctl.serve.fleet.fingerprints import Fingerprints, fleet_files

_FAST = 1.0
"""Seconds between two looks where the system does not tell."""
_UNKNOWN = "unknown"
"""In the place of the digest of a file that has not been looked at."""


class Watch:
    """Of the files that PATHs mean, from the moment that this is made on, and of those to `follow`; one taker."""

    def __init__(
        self,
        paths: Sequence[str],
        *,
        settle: float = 0.1,
        longest: float = 2.0,
        poll: float = 5.0,
        inotify: bool = True,
    ) -> None:
        """Seconds: without movement until a change counts as whole; the most from the first movement; between two looks
        that nobody asked for. `inotify=False`: the system is not asked to tell."""
        self._paths = tuple(paths)
        self._settle = settle
        self._longest = longest
        self._poll = poll
        self._inotify = inotify
        self._followed: frozenset[Path] = frozenset()
        self._fingerprints = Fingerprints()
        self._given = self._fingerprints.of(fleet_files(self._paths))
        self._wake = asyncio.Event()
        self._bell = FileEvents(self._wake.set)

    @property
    def polling(self) -> str:
        """Why the files are only looked at from time to time, in words; empty: the system tells of changes."""
        return self._bell.broken if self._inotify else "inotify is not used"

    def follow(self, files: Iterable[Path]) -> None:
        """These beside the fleet, and no others. A mapping tells what each held when it was read, as digests of
        `fingerprint.Fingerprints`: where that is not so any more, it is a change."""
        told = files if isinstance(files, Mapping) else {}
        fleet = {file: digest for file, digest in self._given.items() if file not in self._followed}
        self._given = fleet | {file: told.get(file, self._given.get(file, _UNKNOWN)) for file in files}
        self._followed = frozenset(files)
        self._wake.set()

    async def changes(self) -> AsyncIterator[None]:
        """One for each change, or for several that came together."""
        try:
            while True:
                await self._hang()
                if await self._look() != self._given and await self._settled():
                    yield
                else:
                    await self._woken()
        finally:
            await self._bell.close()

    async def _settled(self) -> bool:
        """Whether something is other than it was, once it has come to rest or has moved for too long."""
        until = time.monotonic() + self._longest
        seen = await self._look()
        while time.monotonic() < until:
            await asyncio.sleep(self._settle)
            before, seen = seen, await self._look()
            if seen == before:
                break
        changed = seen != self._given
        self._given = seen
        return changed

    async def _look(self) -> dict[Path, str]:
        """What all the files hold."""
        seen = await asyncio.to_thread(self._fingerprint)
        self._given |= {file: seen[file] for file, digest in self._given.items() if digest == _UNKNOWN and file in seen}
        return seen

    def _fingerprint(self) -> dict[Path, str]:
        return self._fingerprints.of([*fleet_files(self._paths), *self._followed])

    async def _hang(self) -> None:
        """Before the look: what happens after it is told."""
        if self._inotify:
            await self._bell.hang(await asyncio.to_thread(self._around))

    def _around(self) -> WatchedDirectories:
        links = (file for file in fleet_files(self._paths) if file.is_symlink())
        return around([*(Path(path) for path in self._paths if path != "-"), *links, *self._followed])

    async def _woken(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(min(self._poll, _FAST) if self.polling else self._poll):
                await self._wake.wait()
        self._wake.clear()

"""Notifies the caller when the operating system reports an event in a watched directory.

An event only indicates that a file may have changed: some file systems do not report any events, and others report too
many. The caller must therefore compare the files' contents.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lbctl.base.errors import reason_of
from lbctl.runtime import log
from lbctl.runtime.guard import Guard

_DEBOUNCE_MS = 50
"""Time in milliseconds over which events are combined into one notification."""
_STEP_MS = 20
"""Milliseconds without an event after which this period ends early."""

_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class WatchedDirectories:
    """The directories that must be watched in order to notice every change to a set of files."""

    directories: frozenset[tuple[Path, int, int]] = frozenset()
    """Each directory with its device and inode, because a directory that was deleted and recreated is a different
    directory."""
    names: frozenset[str] = frozenset()
    """Names of files in these directories that are relevant in addition to YAML files."""

    def concerned(self, path: str) -> bool:
        """Return whether an event for `path` in one of the directories may mean that a watched file has changed."""
        name = path.rpartition("/")[2]
        return name in self.names or name.endswith(_SUFFIXES)


class FileEvents:
    """Calls `notify` in the event loop after each event that may affect a watched file."""

    def __init__(self, notify: Callable[[], None], guard: Guard) -> None:
        self._notify = notify
        self._guard = guard
        self._task: asyncio.Task[None] | None = None
        self._watched = WatchedDirectories()
        self.unavailable = ""
        """Reason why the operating system does not report events; empty if it does."""
        self._logged = ""
        """The most recently logged reason."""
        self._undecoded = ""
        """The most recently logged event whose name is not UTF-8."""

    async def watch(self, watched: WatchedDirectories) -> bool:
        """From now on, watch exactly these directories. Return whether new watches were registered."""
        if watched == self._watched and not self.unavailable:
            return False
        await self.close()
        self._watched, self.unavailable = watched, ""
        self._task = asyncio.create_task(self._listen(watched), name="file events")
        await asyncio.sleep(0)  # the task runs until its first wait, which registers the watches
        return not self.unavailable

    async def close(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _listen(self, watched: WatchedDirectories) -> None:
        try:
            await self._notify_of_changes(watched)
            reason = "the file watch ended"
        except (OSError, RuntimeError) as error:
            reason = reason_of(error).lower()
        except Exception as error:  # noqa: BLE001 -- the files are polled, and `watch` tries again
            reason = reason_of(error)
            if reason != self._logged:
                self._guard.record("a task failed and is restarted", "file events")
        if reason != self._logged:
            log.warn("file notifications are not available; checking the files for changes every second", why=reason)
        self.unavailable = self._logged = reason

    async def _notify_of_changes(self, watched: WatchedDirectories) -> None:
        from watchfiles import Change, awatch

        def concerned(_: Change, path: str) -> bool:
            return watched.concerned(path)

        directories = sorted(path for path, _, _ in watched.directories)
        while True:
            try:
                async for _ in awatch(
                    *directories,
                    watch_filter=concerned,
                    debounce=_DEBOUNCE_MS,
                    step=_STEP_MS,
                    recursive=False,
                    force_polling=False,
                ):
                    self._logged = ""
                    self._notify()
                return
            except Exception as error:
                problem = _undecoded(error)
                if not problem:
                    raise
            if problem != self._undecoded:
                log.warn("a file in a watched directory has a name that is not UTF-8", problem=problem)
            self._undecoded = problem
            await asyncio.sleep(_DEBOUNCE_MS / 1000)
            self._notify()  # the files are compared once the next watch has been registered


def _undecoded(error: Exception) -> str:
    """Return the message if a file name that is not UTF-8 has ended the library's watch; empty for other errors."""
    from watchfiles._rust_notify import WatchfilesRustInternalError

    errors = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
    found = [str(item) for item in errors if isinstance(item, WatchfilesRustInternalError)]
    return next((text for text in found if text.startswith("Unable to decode path")), "")


def watched_directories(paths: Iterable[Path]) -> WatchedDirectories:
    """Return the directories that report an event when any of these files or directories changes.

    They include the directories of all symbolic links on the path to a file, so that replacing a link is noticed. If a
    directory does not exist, its nearest existing ancestor is watched.
    """
    directories: set[Path] = set()
    checked: set[Path] = set()
    pending = [_absolute(path) for path in paths]
    while pending:
        path = pending.pop()
        directories.add(_nearest(path.parent))
        if os.path.isdir(path):  # noqa: PTH112 -- false, not an error, where this user may not look
            directories.add(path)
        for ancestor in (path, *path.parents):
            if ancestor in checked:
                break
            checked.add(ancestor)
            if os.path.islink(ancestor):  # noqa: PTH114 -- likewise
                directories.add(_nearest(ancestor.parent))
                pending.append(_target(ancestor))
    return WatchedDirectories(_identified(directories), frozenset(path.name for path in checked))


def _absolute(path: Path) -> Path:
    """Return the absolute path without `..` and without resolving symbolic links."""
    return Path(os.path.abspath(path))  # noqa: PTH100 -- resolve() would follow the links


def _target(link: Path) -> Path:
    try:
        return _absolute(link.parent / link.readlink())
    except OSError:
        return link


def _nearest(directory: Path) -> Path:
    """Return the directory itself if it exists, or else its nearest existing ancestor."""
    directories = (path for path in (directory, *directory.parents) if os.path.isdir(path))  # noqa: PTH112
    return next(directories, Path("/"))


def _identified(paths: Iterable[Path]) -> frozenset[tuple[Path, int, int]]:
    """Return each directory once, with its device and inode, even if several paths lead to it."""
    path_by_identity: dict[tuple[int, int], Path] = {}
    for path in sorted(paths):
        with suppress(OSError):
            status = path.stat()
            path_by_identity.setdefault((status.st_dev, status.st_ino), path)
    return frozenset((path, *identity) for identity, path in path_by_identity.items())

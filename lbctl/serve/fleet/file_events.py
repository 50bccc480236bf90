"""Told by the system that something has happened in a directory; what it was is for others to find out.

The system's word is a hint and nothing more: it is not given on some file systems, and comes too often on others.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lbctl.base.errors import reason_of

_GATHER = 50
"""ms for which what happens together is gathered."""
_STEP = 20

_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class WatchedDirectories:
    """Where something happens when a file changes. `directories`: each with its device and inode, since one that was
    made anew is another one; `names`: what in them may concern a file beside those of YAML."""

    directories: frozenset[tuple[Path, int, int]] = frozenset()
    names: frozenset[str] = frozenset()

    def concerned(self, path: str) -> bool:
        """Whether a file may have changed when something has happened to `path` in one of the directories."""
        name = path.rpartition("/")[2]
        return name in self.names or name.endswith(_SUFFIXES)


class FileEvents:
    """Calls `ring` in the event loop after something has happened that may concern a file."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._task: asyncio.Task[None] | None = None
        self._heard = WatchedDirectories()
        self.broken = ""
        """Why the system does not tell, in words; empty while it does."""

    async def hang(self, heard: WatchedDirectories) -> None:
        """From now on in these."""
        if heard == self._heard and not self.broken:
            return
        await self.close()
        self._heard, self.broken = heard, ""
        self._task = asyncio.create_task(self._listen(heard), name="bell")
        await asyncio.sleep(0)  # the task's first step, up to its first wait, is what hangs the bell

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _listen(self, heard: WatchedDirectories) -> None:
        from watchfiles import Change, awatch

        def concerned(_: Change, path: str) -> bool:
            return heard.concerned(path)

        directories = sorted(path for path, _, _ in heard.directories)
        try:
            async for _ in awatch(
                *directories, watch_filter=concerned, debounce=_GATHER, step=_STEP, recursive=False, force_polling=False
            ):
                self._ring()
        except (OSError, RuntimeError) as error:
            self.broken = reason_of(error).lower()


def around(paths: Iterable[Path]) -> WatchedDirectories:
    """The surroundings of these files and directories, also where a link on the way to one is set anew; of one that is
    not there, those of the nearest that is."""
    found: set[Path] = set()
    checked: set[Path] = set()
    todo = [_absolute(path) for path in paths]
    while todo:
        path = todo.pop()
        found.add(_nearest(path.parent))
        if path.is_dir():
            found.add(path)
        for place in (path, *path.parents):
            if place in checked:
                break
            checked.add(place)
            if place.is_symlink():
                found.add(_nearest(place.parent))
                todo.append(_target(place))
    return WatchedDirectories(_identified(found), frozenset(place.name for place in checked))


def _absolute(path: Path) -> Path:
    """Without `..`, and with its links as they are."""
    return Path(os.path.abspath(path))  # noqa: PTH100 -- resolve() would follow the links


def _target(link: Path) -> Path:
    try:
        return _absolute(link.parent / link.readlink())
    except OSError:
        return link


def _nearest(directory: Path) -> Path:
    return next((place for place in (directory, *directory.parents) if place.is_dir()), Path("/"))


def _identified(paths: Iterable[Path]) -> frozenset[tuple[Path, int, int]]:
    """Each directory once, whatever it is called."""
    found: dict[tuple[int, int], Path] = {}
    for path in sorted(paths):
        with suppress(OSError):
            status = path.stat()
            found.setdefault((status.st_dev, status.st_ino), path)
    return frozenset((path, *identity) for identity, path in found.items())

"""Manages nginx's configuration on disk. A single rename switches all files, and the previous files are kept.

The `nginx.conf.lbctl` directory next to `nginx.conf` contains one generation of files per configuration and a `current`
link to the live generation. `nginx.conf` and each file that it includes are links through `current`. Therefore, nginx
always reads one complete generation, even after a crash. If a file existed at the path of such a link, it is kept as
`.orig`. lbctl does not change anything else in the directory.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lbctl.apply.files import write_bundle
from lbctl.targets.target import Bundle

_HOME = ".lbctl"


@dataclass(frozen=True, slots=True)
class Swapped:
    """The changes made by a swap, which are used to undo it.

    `before` is the previously live generation. `links` pairs each path that is now a link with the backup of its
    previous file, or None if it had no file.
    """

    before: str | None
    links: tuple[tuple[Path, Path | None], ...]


class Generations:
    """The generations of the configuration file at the absolute path `config`. Every method may raise OSError."""

    def __init__(self, config: Path) -> None:
        self.config = config
        self._home = config.with_name(config.name + _HOME)
        self._current = self._home / "current"
        self._running_file = self._home / "running"

    def stage(self, bundle: Bundle) -> Path:
        """Write the bundle as a new generation that is not live yet, and return its directory."""
        self._home.mkdir(mode=0o755, exist_ok=True)
        generation = self._home / f"{1 + max(map(int, self._generations()), default=0):06d}"
        try:
            write_bundle(bundle, str(generation))
        except OSError:
            self.discard(generation)
            raise
        return generation

    def discard(self, generation: Path) -> None:
        """Delete a generation."""
        shutil.rmtree(generation, ignore_errors=True)

    def swap(self, generation: Path, bundle: Bundle) -> Swapped:
        """Make the generation live. If this fails, nothing has changed."""
        before = self._live()
        replaced: list[tuple[Path, Path | None]] = []
        main, *others = [item.name for item in bundle.files]
        try:
            if before is None:
                self._set_current(generation.name)
            for name in others:
                self._link(self.config.with_name(name), name, replaced)
            self._set_current(generation.name)
            self._link(self.config, main, replaced)
        except OSError:
            self.undo(Swapped(before, tuple(replaced)))
            raise
        return Swapped(before, tuple(replaced))

    def undo(self, swapped: Swapped) -> None:
        """Make the previous generation live again."""
        links = list(reversed(swapped.links))
        for place, backup in links:
            if backup is not None:
                self._restore(backup, place)
        if swapped.before is not None:
            self._set_current(swapped.before)
        for place, backup in links:
            if backup is None:
                place.unlink(missing_ok=True)
        if swapped.before is None:
            self._current.unlink(missing_ok=True)

    def keep(self, bundle: Bundle, stamp: str) -> None:
        """Record that nginx is running the live generation with this `stamp`.

        Delete all generations except this one and its predecessor.
        """
        live = self._live()
        temporary = self._running_file.with_name(".running.new")
        temporary.write_text(f"{live} {stamp}\n")
        temporary.replace(self._running_file)
        older = [name for name in self._generations() if name != live]
        for name in older[:-1]:
            self.discard(self._home / name)
        self._drop_links({item.name for item in bundle.files})

    def running(self) -> str | None:
        """Return the stamp passed to `keep` if that generation is still live."""
        with suppress(FileNotFoundError):
            live, _, stamp = self._running_file.read_text().strip().partition(" ")
            return stamp if live == self._live() else None
        return None

    def holds(self, bundle: Bundle) -> bool:
        """Return whether the live generation equals this bundle and all links point to it."""
        main = bundle.main.name
        places = [
            (self.config if item.name == main else self.config.with_name(item.name), item) for item in bundle.files
        ]
        return all(
            self._is_ours(place, item.name) and place.is_file() and place.read_bytes() == item.text.encode()
            for place, item in places
        )

    def _live(self) -> str | None:
        return str(self._current.readlink()) if self._current.is_symlink() else None

    def _generations(self) -> list[str]:
        return sorted(item.name for item in self._home.iterdir() if item.name.isdigit())

    def _set_current(self, generation: str) -> None:
        _symlink(generation, self._current)
        _sync(self._home)

    def _link(self, place: Path, name: str, replaced: list[tuple[Path, Path | None]]) -> None:
        if self._is_ours(place, name):
            return
        if place.is_symlink() and f"{_HOME}/current/" in str(place.readlink()):
            raise FileExistsError(errno.EEXIST, "it belongs to another nginx in the fleet", str(place))
        backup = self._back_up(place) if place.is_symlink() or place.exists() else None
        _symlink(self._target(name), place)
        replaced.append((place, backup))
        _sync(place.parent)

    def _is_ours(self, place: Path, name: str) -> bool:
        return place.is_symlink() and str(place.readlink()) == self._target(name)

    def _target(self, name: str) -> str:
        return f"{self._home.name}/current/{name}"

    def _back_up(self, place: Path) -> Path:
        """Back up `place` to `.orig`, or `.orig.2` and so on if that file has different content. Return the backup."""
        if place.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(place))
        for number in itertools.count(1):
            backup = place.with_name(f"{place.name}.orig" if number == 1 else f"{place.name}.orig.{number}")
            if not backup.is_symlink() and not backup.exists():
                _copy(place, backup)
                return backup
            if _same(place, backup):
                return backup
        raise AssertionError

    def _restore(self, backup: Path, place: Path) -> None:
        temporary = place.with_name(f".{place.name}.back")
        temporary.unlink(missing_ok=True)
        _copy(backup, temporary)
        temporary.replace(place)
        _sync(place.parent)

    def _drop_links(self, wanted: Iterable[str]) -> None:
        """Delete links to files that were part of an earlier generation but are not part of the live generation."""
        for item in self.config.parent.iterdir():
            if item != self.config and item.name not in wanted and self._is_ours(item, item.name):
                item.unlink()


def _symlink(target: str, place: Path) -> None:
    temporary = place.with_name(f".{place.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(place)


def _copy(place: Path, copy: Path) -> None:
    """Copy a file, if possible as a hard link, which preserves owner and mode."""
    try:
        os.link(place, copy, follow_symlinks=False)
    except OSError:
        shutil.copy2(place, copy, follow_symlinks=False)


def _same(one: Path, other: Path) -> bool:
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and one.readlink() == other.readlink()
    return other.is_file() and one.read_bytes() == other.read_bytes()


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

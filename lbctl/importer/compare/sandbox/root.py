"""A private file system that contains a program with its libraries, a few devices, and one writable directory."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from lbctl.importer.compare.sandbox import kernel

DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_SIZE = "size=1m,mode=755"
"""The new root contains only directories and empty files."""
_KEPT = kernel.READ_ONLY | kernel.NO_SUID | kernel.NO_DEVICES | kernel.NO_PROGRAMS
"""File-system flags that a user namespace is not allowed to remove. `statvfs` uses the same numbers."""


def enter(place: str, directory: str, programs: Iterable[str]) -> None:
    """Make `place` the root directory of this process, so that nothing else is visible. Raises OSError."""
    kernel.unshare(kernel.NEW_MOUNTS)
    kernel.mount("none", "/", None, kernel.PRIVATE | kernel.RECURSIVE)
    kernel.mount("tmpfs", place, "tmpfs", kernel.NO_SUID | kernel.NO_DEVICES, _SIZE)
    for file in programs:
        _show(place, file, kernel.READ_ONLY | kernel.NO_DEVICES)
    for file in DEVICES:
        _show(place, file, kernel.NO_PROGRAMS)
    _show(place, directory, kernel.NO_DEVICES | kernel.NO_PROGRAMS)
    sealed = kernel.READ_ONLY | kernel.NO_SUID | kernel.NO_DEVICES
    kernel.mount("none", place, None, kernel.REMOUNT | kernel.BIND | sealed)
    kernel.change_root(place)
    os.chdir(directory)


def _show(place: str, path: str, flags: int) -> None:
    """Mount a file or directory under its own path in the new root."""
    target = Path(place + path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if Path(path).is_dir():
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    kernel.mount(path, str(target), None, kernel.BIND)
    flags |= os.statvfs(path).f_flag & _KEPT
    kernel.mount("none", str(target), None, kernel.REMOUNT | kernel.BIND | kernel.NO_SUID | flags)

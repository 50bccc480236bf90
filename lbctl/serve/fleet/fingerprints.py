"""Digests of files that are cheap to recompute, because a file is reread only if its inode has changed.

A modification time does not prove that a file is unchanged: two writes of the same length within one tick of the
kernel's clock leave the same time. Therefore, a recently changed file is reread until its modification time is old
enough. For a file that does not exist or cannot be read, the digest is replaced by the name of the error.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from lbctl.model.load import yaml_files
from lbctl.model.text import MAX_BYTES

Signature = tuple[int, ...] | str
"""Device, inode, size, mtime and ctime (both in ns), or the name of the error that prevented the file from being
read."""

_SETTLED_NS = 1_000_000_000
"""Minimum age of a file, in ns, at which any further change is certain to change its modification time."""


def fleet_files(paths: Sequence[str]) -> list[Path]:
    """Return the fleet files that the PATH arguments currently refer to, sorted.

    Missing PATHs are included; standard input (`-`) is not.
    """
    files: set[Path] = set()
    for path in map(Path, (item for item in paths if item != "-")):
        try:
            files.update(yaml_files(path) if path.is_dir() else [path])
        except OSError:
            files.add(path)
    return sorted(files)


def signature(file: Path) -> Signature:
    """Return a file's signature.

    The signature changes with every change to the contents, and with some changes that do not affect the contents.
    """
    try:
        status = file.stat()
    except (OSError, ValueError) as error:
        return _error_name(error)
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def changed_at(stamp: Signature) -> int | None:
    """Return the time of the file's last change, in ns since the epoch; None if the file could not be read."""
    return None if isinstance(stamp, str) else stamp[-1]


class Fingerprints:
    """Computes digests of files, and caches them with each file's signature at the time of reading."""

    def __init__(self) -> None:
        self._entries: dict[Path, tuple[Signature, bool, str]] = {}

    def of(self, files: Iterable[Path]) -> dict[Path, str]:
        """Map each file to the digest of its contents. Files from earlier calls that are not listed are forgotten."""
        self._entries = {file: self._entry(file) for file in files}
        return {file: digest for file, (_, _, digest) in self._entries.items()}

    def _entry(self, file: Path) -> tuple[Signature, bool, str]:
        """Return the signature, whether it is old enough to be reliable, and the digest."""
        current = signature(file)
        earlier = self._entries.get(file)
        if earlier is not None and earlier[0] == current and earlier[1]:
            return earlier
        now = time.time_ns()
        changed = changed_at(current)
        is_reliable = changed is None or abs(now - changed) > _SETTLED_NS
        return current, is_reliable, _digest(file) if changed is not None else str(current)


def _digest(file: Path) -> str:
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as opened:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return "not a regular file"
            return hashlib.blake2b(opened.read(MAX_BYTES + 1), digest_size=16).hexdigest()
    except OSError as error:
        return _error_name(error)


def _error_name(error: OSError | ValueError) -> str:
    return errno.errorcode.get(error.errno or 0, "unreadable") if isinstance(error, OSError) else "unreadable"

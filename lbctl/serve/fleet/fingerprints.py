"""What a set of files holds, cheaply asked again and again: a digest of each, read anew only where its inode moved.

A time stamp is no proof: two writes of the same length within one tick of the kernel's clock leave the same one. So
the content of a file that was changed a moment ago is read again until its stamp is old enough to be believed. A file
that is not there, or cannot be read, has a word for that in the place of its digest.
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
"""Device, inode, size and the two times of change in ns; or why there is none."""

_BELIEVED = 1_000_000_000
"""ns after which a time stamp tells every later change."""


def fleet_files(paths: Sequence[str]) -> list[Path]:
    """The files that PATHs mean now, sorted; a PATH that is not there stands for itself. Standard input is none."""
    found: set[Path] = set()
    for path in map(Path, (item for item in paths if item != "-")):
        try:
            found.update(yaml_files(path) if path.is_dir() else [path])
        except OSError:
            found.add(path)
    return sorted(found)


def signature(file: Path) -> Signature:
    """Moves with every change of the file, whoever made it; also with some that leave its content alone."""
    try:
        status = file.stat()
    except (OSError, ValueError) as error:
        return _word(error)
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def changed_at(seen: Signature) -> int | None:
    """When, in ns since the epoch, the file was last changed."""
    return None if isinstance(seen, str) else seen[-1]


class Fingerprints:
    """Remembers what it has read."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[Signature, bool, str]] = {}

    def of(self, files: Iterable[Path]) -> dict[Path, str]:
        """File → digest of its content. Files that were asked about before and are not now are forgotten."""
        self._known = {file: self._entry(file) for file in files}
        return {file: digest for file, (_, _, digest) in self._known.items()}

    def _entry(self, file: Path) -> tuple[Signature, bool, str]:
        seen = signature(file)
        known = self._known.get(file)
        if known is not None and known[0] == seen and known[1]:
            return known
        asked = time.time_ns()
        changed = changed_at(seen)
        believed = changed is None or abs(asked - changed) > _BELIEVED
        return seen, believed, _digest(file) if changed is not None else str(seen)


def _digest(file: Path) -> str:
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as opened:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return "no regular file"
            return hashlib.blake2b(opened.read(MAX_BYTES + 1), digest_size=16).hexdigest()
    except OSError as error:
        return _word(error)


def _word(error: OSError | ValueError) -> str:
    return errno.errorcode.get(error.errno or 0, "unreadable") if isinstance(error, OSError) else "unreadable"

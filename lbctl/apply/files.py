"""Writes a bundle to disk without leaving incomplete files.

Every file is first written in full next to its target, and all files are then renamed into place. Unchanged files are
not written. Files that contain secrets are created so that only their owner can read them.
"""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from lbctl.targets.target import Bundle, File


def write_bundle(bundle: Bundle, directory: str) -> None:
    """Write the bundle. If the directory is not writable, raises OSError without having changed anything in it."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    changed = [item for item in bundle.files if _differs(folder / item.name, item)]
    pending: list[tuple[str, Path]] = []
    try:
        pending.extend((_write_temporary(folder, item), folder / item.name) for item in changed)
        while pending:
            temporary, place = pending[0]
            os.replace(temporary, place)  # noqa: PTH105 -- a str and a Path
            pending.pop(0)
    finally:
        for temporary, _ in pending:
            os.unlink(temporary)  # noqa: PTH108 -- a str
    _sync(folder)


def _differs(place: Path, item: File) -> bool:
    if place.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(place))
    return (
        not place.is_file() or place.read_bytes() != item.text.encode() or (place.stat().st_mode & 0o777) != _mode(item)
    )


def _mode(item: File) -> int:
    return 0o600 if item.secret else 0o644


def _write_temporary(folder: Path, item: File) -> str:
    handle, name = tempfile.mkstemp(prefix=f".{item.name}.", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(item.text.encode())
            file.flush()
            os.fchmod(file.fileno(), _mode(item))
            os.fsync(file.fileno())
    except OSError:
        os.unlink(name)  # noqa: PTH108 -- a str
        raise
    return name


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

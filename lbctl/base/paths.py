"""Checks for user-supplied paths. The checks return False where `Path` would raise an exception.

Before Python 3.14, `Path.is_file()` and similar methods raise OSError if the current user is not allowed to search a
parent directory, or if a name is too long. These functions return False, and the code that opens the path reports the
reason.
"""

from __future__ import annotations

import os
from pathlib import Path


def exists(path: Path | str) -> bool:
    """Return whether the path exists, as far as the current user can see."""
    return os.path.exists(path)  # noqa: PTH110


def is_file(path: Path | str) -> bool:
    """Return whether the current user can see a regular file at the path."""
    return os.path.isfile(path)  # noqa: PTH113


def is_directory(path: Path | str) -> bool:
    """Return whether the current user can see a directory at the path."""
    return os.path.isdir(path)  # noqa: PTH112


def is_link(path: Path | str) -> bool:
    """Return whether the current user can see a symbolic link at the path."""
    return os.path.islink(path)  # noqa: PTH114


def without_links(path: Path | str) -> Path:
    """Resolve symbolic links as far as possible. `Path.resolve()` would raise RuntimeError if they form a loop."""
    return Path(os.path.realpath(path))

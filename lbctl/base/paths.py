"""Whether a path that a user writes leads to something here.

Before Python 3.14 `Path.is_file()` and its like raise OSError where a directory on the way may not be searched by this
user, or a name is too long. Here the answer is no, and whoever opens the path gets the reason.
"""

from __future__ import annotations

import os
from pathlib import Path


def exists(path: Path | str) -> bool:
    """Return whether this user can see something at the path."""
    return os.path.exists(path)  # noqa: PTH110


def is_file(path: Path | str) -> bool:
    """Return whether this user can see a regular file at the path."""
    return os.path.isfile(path)  # noqa: PTH113


def is_directory(path: Path | str) -> bool:
    """Return whether this user can see a directory at the path."""
    return os.path.isdir(path)  # noqa: PTH112


def is_link(path: Path | str) -> bool:
    """Return whether this user can see a symbolic link at the path."""
    return os.path.islink(path)  # noqa: PTH114


def without_links(path: Path | str) -> Path:
    """Resolve links as far as possible; `Path.resolve()` raises RuntimeError where they form a circle."""
    return Path(os.path.realpath(path))

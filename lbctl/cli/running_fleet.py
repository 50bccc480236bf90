"""Uses the API to check whether a `serve` is running the fleet at a path, and finds the token in the state directory.

A running `lbctl up` also counts as a `serve`.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from lbctl.api.any_version import AnyVersionStatus
from lbctl.base.paths import exists, without_links
from lbctl.base.printable import plain


def runs(status: AnyVersionStatus, path: str) -> bool:
    """Return whether this `/api/v1/status` comes from a `serve` that has read the fleet at the path.

    A file located directly in one of that `serve`'s directories counts as the same fleet, and vice versa.
    """
    own = without_links(path)
    return any(own in (item, item.parent) or item == own.parent for item in _paths(status))


def is_elsewhere(status: AnyVersionStatus) -> bool:
    """Return whether none of that `serve`'s paths exist on this machine, for example because it runs in a container."""
    return not any(exists(item) for item in _paths(status))


def names_of(status: AnyVersionStatus) -> str:
    """Return the absolute paths of that `serve`'s fleet, for a message."""
    return plain(", ".join(str(item) for item in _paths(status)))


def state_of(status: AnyVersionStatus) -> str | None:
    """Return that `serve`'s state directory, or None if it does not report one."""
    return status.listens.state if status.listens is not None else None


def is_own(directory: Path) -> bool:
    """Return whether the directory belongs to this user."""
    try:
        return directory.lstat().st_uid == os.geteuid()
    except (OSError, ValueError):
        return False


def token_in(state: str) -> Path | None:
    """Return the token file in a state directory that an API reports, or None if it may belong to another user.

    The directory and the file must belong to this user. Otherwise, another process could make lbctl send it a secret
    file of this user.
    """
    from lbctl.serve.settings import TOKEN

    file = Path(state) / TOKEN
    try:
        directory, entry = Path(state).lstat(), file.lstat()
    except (OSError, ValueError):  # the string is not a path
        return None
    is_own = directory.st_uid == entry.st_uid == os.geteuid()
    return file if is_own and stat.S_ISDIR(directory.st_mode) and stat.S_ISREG(entry.st_mode) else None


def _paths(status: AnyVersionStatus) -> list[Path]:
    """Return that `serve`'s fleet paths. Empty if it is an older lbctl version, which does not report its directory."""
    fleet = status.fleet
    if fleet is None or not fleet.directory:
        return []
    try:
        return [without_links(Path(fleet.directory) / item) for item in fleet.paths]
    except (OSError, ValueError):  # the string is not a path
        return []

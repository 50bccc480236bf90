"""The files used by `up`: persistent files in the user's directory, and other files in a private directory.

The user's directory is derived from the paths of the fleet, so that a fleet keeps its state and key between runs. The
private directory is temporary for two reasons: its sockets need short paths, and an nginx started as root runs as
another user, who cannot enter a home directory.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_DIRECTORY_CHARACTERS, _SHORT = 60, "/tmp"
"""Maximum path length, in characters, of a directory for HAProxy's socket, and the directory to use if the path is
longer."""
_PREFIX, _OWNER = "lbctl-up-", "owner"
"""Prefix of private directories, and the file that each `up` keeps locked in its directory while it is running."""
_LOCK, _API = "lock", "api"
"""Files in a fleet's directory: the lock of the `up` that is running it, and the address of its API."""
_YOUNG = 60.0
"""Age in seconds below which a directory may belong to an `up` that is just starting."""
_ENTER = 0o711
"""Mode of the private directory if `up` is run as root: other users can enter it but not list it."""


class AlreadyRunningError(Exception):
    """Another `up` is already running this fleet. The message identifies the other `up`."""


@dataclass(frozen=True, slots=True)
class Home:
    """The user's directory for one fleet."""

    path: Path
    """Path of the directory, whose mode is 0700."""

    @property
    def state(self) -> Path:
        """State directory of `lbctl serve`."""
        return self.path / "state"

    @property
    def key_file(self) -> Path:
        """Key file for a fleet that does not require any keys itself."""
        return self.path / "keys"

    @property
    def api(self) -> str:
        """API address of the `up` that is running this fleet; empty if there is none, or if it is still starting."""
        try:
            with (self.path / _LOCK).open("r", encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            with suppress(OSError):
                return (self.path / _API).read_text(encoding="utf-8")
        except OSError:
            pass
        return ""

    def announce(self, api: str) -> None:
        """Write the address of this run's API, while the fleet is `locked`. Raises OSError."""
        (self.path / _API).write_text(api, encoding="utf-8")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the fleet's lock while the block runs. Raises AlreadyRunningError and OSError."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.path / _LOCK).open("a+", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise AlreadyRunningError(lock.read().strip() or "a process that is just starting") from None
            lock.truncate(0)
            lock.write(f"process {os.getpid()}\n")
            lock.flush()
            (self.path / _API).unlink(missing_ok=True)
            yield


class NoHomeError(Exception):
    """The environment does not define a directory for this user's files."""


def home_of(paths: Sequence[str]) -> Home:
    """Return the directory for the fleet in `paths`, below XDG_STATE_HOME (default ~/.local/state).

    Raises NoHomeError if neither directory is known.
    """
    absolute = [os.path.realpath(path) for path in paths]
    digest = hashlib.sha256("\0".join(sorted(absolute)).encode("utf-8", "surrogateescape")).hexdigest()[:8]
    try:
        base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    except RuntimeError:
        raise NoHomeError("this user has no home directory, and XDG_STATE_HOME is not set") from None
    name = _PLAIN.sub("-", Path(absolute[0]).stem)[:40]
    return Home(Path(base) / "lbctl" / "up" / f"{name}-{digest}")


@contextmanager
def private_directory() -> Iterator[Path]:
    """Create a temporary directory that only this user can list. The directory is deleted at the end."""
    directory = tempfile.gettempdir()
    directory = directory if len(directory) <= _MAX_DIRECTORY_CHARACTERS else _SHORT
    _remove_abandoned(Path(directory))
    place = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=directory))
    try:
        if os.geteuid() == 0:
            place.chmod(_ENTER)
        with (place / _OWNER).open("w", encoding="ascii") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX)
            yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _remove_abandoned(directory: Path) -> None:
    """Delete the directories left by this user's killed runs. A running `up` holds the lock on its file."""
    for place in directory.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            status = place.lstat()
            if status.st_uid != os.geteuid() or time.time() - status.st_mtime < _YOUNG:
                continue
            with (place / _OWNER).open("r", encoding="ascii") as owner:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(place, ignore_errors=True)

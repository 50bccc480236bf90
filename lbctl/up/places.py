"""Where `up` keeps its files: what outlives a run in a directory of the user, everything else in a private one.

The directory of the user is found by the paths of the fleet, so the same fleet has the same state and key at its next
start. The private directory is a temporary one, because its sockets need short paths, and nginx, started by root, works
as another user who cannot enter a home directory.
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
"""The longest directory, in characters, below which HAProxy can bind its socket, and the one that is used instead."""
_PREFIX, _OWNER = "lbctl-up-", "owner"
"""How a private directory is named, and the file in it that its `up` holds locked while it runs."""
_LOCK, _API = "lock", "api"
"""The files of a fleet's directory: the lock of the `up` that runs it, and where the API of that one listens."""
_YOUNG = 60.0
"""Seconds in which a directory may belong to an `up` that is just starting."""
_ENTER = 0o711
"""The mode of the private directory where root runs `up`: other users can enter it and not list it."""


class AlreadyRunningError(Exception):
    """Another `up` runs this fleet; the text says which one."""


@dataclass(frozen=True, slots=True)
class Home:
    """The directory of the user for one fleet."""

    path: Path
    """The directory itself, which has the mode 0700."""

    @property
    def state(self) -> Path:
        """The state of `lbctl serve`."""
        return self.path / "state"

    @property
    def key_file(self) -> Path:
        """The keys of a fleet that asks for none by itself."""
        return self.path / "keys"

    @property
    def api(self) -> str:
        """The address of the API of the `up` that runs this fleet now; empty where none runs, or it is starting."""
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
        """Write where the API of this run listens, while the fleet is `locked`. Raises OSError."""
        (self.path / _API).write_text(api, encoding="utf-8")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the fleet while the block runs. Raises AlreadyRunningError, and OSError."""
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
    """Nothing says where this user keeps files."""


def home_of(paths: Sequence[str]) -> Home:
    """Return the directory for the fleet in `paths`: below XDG_STATE_HOME, by default ~/.local/state.

    Raises NoHomeError where there is neither.
    """
    absolute = [os.path.realpath(path) for path in paths]
    digest = hashlib.sha256("\0".join(sorted(absolute)).encode("utf-8", "surrogateescape")).hexdigest()[:8]
    try:
        base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    except RuntimeError:
        raise NoHomeError("this user has no home directory, and XDG_STATE_HOME names no other one") from None
    name = _PLAIN.sub("-", Path(absolute[0]).stem)[:40]
    return Home(Path(base) / "lbctl" / "up" / f"{name}-{digest}")


@contextmanager
def private_directory() -> Iterator[Path]:
    """Make a temporary directory that only this user can list; it is deleted at the end."""
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
    """Delete the directories of this user's runs that were killed; one that still runs holds the lock of its file."""
    for place in directory.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            status = place.lstat()
            if status.st_uid != os.geteuid() or time.time() - status.st_mtime < _YOUNG:
                continue
            with (place / _OWNER).open("r", encoding="ascii") as owner:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(place, ignore_errors=True)

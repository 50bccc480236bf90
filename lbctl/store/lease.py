"""The right to write to the store and to act as the leader.

`Authority` tracks that right on this process's monotonic clock. A leader that cannot renew its lease stops acting
before another process can acquire it, regardless of what the store or the machine's clock reports. If the store does
not respond, the last leader continues to decide weights and health for its own proxies, because these decisions depend
on its measurements and do not require the store.

`LockFile` is a state directory's lease: only one process at a time can hold it, and it is released immediately if the
process is killed.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from lbctl.base.diagnostics import show
from lbctl.base.errors import reason_of
from lbctl.store.interface import StoreError, UnwritableError

_MAX_PID_BYTES = 32
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def elapsed() -> float:
    """Return the seconds on a clock that also runs while the machine is suspended, if it has such a clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class Authority:
    """This process's right to make decisions and to act.

    `clock`: seconds that also pass while the process is stopped.
    """

    def __init__(self, clock: Callable[[], float] = elapsed) -> None:
        self.clock = clock
        self.until = -math.inf
        """Clock time at which the right to act ends."""
        self.isolated = False
        """Whether this process was the last leader and the store is not responding."""

    @classmethod
    def unlimited(cls) -> Authority:
        """Return the authority for a process that does not share its state with any other process."""
        authority = cls()
        authority.extend(math.inf)
        return authority

    def extend(self, until: float) -> None:
        """Grant the right to act until this time of the clock."""
        self.until = until

    def end(self) -> None:
        """End the right to act."""
        self.until = -math.inf

    def set_isolated(self, isolated: bool) -> None:
        """Set whether this process was the last leader and the store is not responding."""
        self.isolated = isolated

    @property
    def acts(self) -> bool:
        """Whether this process may modify the store and this machine's proxies."""
        return self.clock() < self.until

    @property
    def decides(self) -> bool:
        """Whether this process may decide weights and health."""
        return self.isolated or self.acts


class LockFile:
    """An exclusive `flock` on a directory and on a file in it that contains the owner's PID.

    If the file is removed, the directory remains locked, so that no other process can acquire the lock.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._handle = self._directory = -1

    def acquire(self) -> bool:
        """Try to acquire the lock. Return whether this process now has it.

        Raises StoreError if the file cannot be used.
        """
        with as_store_error(self._file.parent), ExitStack() as opened:
            directory = os.open(self._file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, directory)
            handle = open_private(self._file)
            opened.callback(os.close, handle)
            try:
                _lock_directory(directory)
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            if not _names(self._file, handle):
                return False
            with suppress(OSError):  # the disk is full; the PID is only informational
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            opened.pop_all()
            self._handle, self._directory = handle, directory
            return True

    def held(self) -> bool:
        """Whether this process has the lock, and the directory is still the one that other processes would lock."""
        return self._handle >= 0 and _names(self._file.parent, self._directory)

    def release(self) -> None:
        """Release the lock, if this process has it."""
        if self._handle >= 0:
            os.close(self._handle)
            os.close(self._directory)
            self._handle = self._directory = -1

    def holder(self) -> str:
        """Return a description of the process that has the lock."""
        try:
            with as_store_error(self._file.parent):
                handle = open_private(self._file)
        except StoreError:
            return "another process"
        try:
            text = os.pread(handle, _MAX_PID_BYTES, 0).decode("ascii", "replace").strip()
        finally:
            os.close(handle)
        return f"the process {text}" if text.isdecimal() else "another process"


def _lock_directory(handle: int) -> None:
    """Lock a directory, if its file system supports locks. Raises BlockingIOError if another process has the lock."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return  # some network file systems can lock only files


def open_private(file: Path) -> int:
    """Open a regular file that only its owner can access, and create it if missing. Links are not followed.

    Raises OSError, and StoreError if it is not a regular file.
    """
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise StoreError(f"{show(str(file))} is not a regular file")
    if stat.S_IMODE(mode) != 0o600:
        with suppress(PermissionError):
            os.fchmod(handle, 0o600)
    return handle


@contextmanager
def as_store_error(directory: Path) -> Iterator[None]:
    """Convert an OSError raised inside the block to a StoreError that states the operating system's reason.

    The error is an UnwritableError if the disk is full.
    """
    try:
        yield
    except (BlockingIOError, StoreError):
        raise
    except (OSError, ValueError) as error:
        reason = reason_of(error).lower()
        is_full = isinstance(error, OSError) and error.errno in _FULL
        kind = UnwritableError if is_full else StoreError
        raise kind(f"the state directory {show(str(directory))} cannot be used: {reason}") from error


def _names(file: Path, handle: int) -> bool:
    """Return whether the handle still refers to the file with this name."""
    try:
        return os.path.samestat(os.fstat(handle), file.stat())
    except FileNotFoundError:
        return False

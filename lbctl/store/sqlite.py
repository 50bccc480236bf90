"""State in a SQLite database on this machine.

The lease is a lock file: only one process at a time uses the state, and a killed process's lock is released
immediately. An unusable database is renamed, and its intact entries are copied to a new database. If the disk is full,
the process becomes the leader with the entries that it has read, and each write first tries to reopen the database.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lbctl.base.diagnostics import show
from lbctl.store import sqlite_schema
from lbctl.store.interface import (
    ABSENT,
    ConflictError,
    FencedError,
    KeyChange,
    Lease,
    LeaseHeldError,
    StoreEntry,
    StoreError,
    UnwritableError,
    changes_between,
    matches,
)
from lbctl.store.lease import LockFile, as_store_error, open_private
from lbctl.store.sqlite_schema import VERSION, DamagedError

__all__ = ["DATABASE", "VERSION", "SqliteStore"]

DATABASE = "lbctl.db"
_LOCK = "lock"
_SIDE_FILES = ("-wal", "-shm")
_SET_ASIDE = 3
"""Maximum number of renamed damaged databases to keep."""
_POLL_INTERVAL = 0.5
"""Seconds between reads by `watch`."""
_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY})
"""SQLite's primary result codes for a disk that rejects writes."""


class SqliteStore:
    """A StateStore in a directory on this machine. `read` without the lease requires an existing database."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._notes: list[str] = []
        self._lock = LockFile(directory / _LOCK)
        self._lease: Lease | None = None
        self._database: sqlite3.Connection | None = None
        self._turn = threading.Lock()
        self._unwritable: tuple[StoreEntry, ...] | None = None
        """Entries of a database that cannot be written to yet; None if it is open."""
        self._reopening = threading.Lock()

    @classmethod
    def open(cls, directory: Path) -> SqliteStore:
        """Open the state in `directory`, which is created (0700) if it is missing. Blocks.

        Raises StoreError if the directory is not usable.
        """
        with as_store_error(directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.access(directory, os.W_OK | os.X_OK):
                raise StoreError(f"the state directory {show(str(directory))} cannot be written")
            mode = stat.S_IMODE(directory.stat().st_mode)
        store = cls(directory)
        if _is_open_to_others(mode):
            store._notes.append(
                f"other users on this machine can change the state directory {show(str(directory))} (mode {mode:04o}): "
                f"chmod 700 {directory}"
            )
        return store

    @property
    def location(self) -> str:
        """The directory of the state."""
        return str(self.directory)

    def notes(self) -> tuple[str, ...]:
        """Return the repairs, losses and security problems at the time when the database was opened."""
        return tuple(self._notes)

    # ── The lease ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def acquire(self) -> Lease:
        """Acquire the lease, and open or repair the database. Raises LeaseHeldError and StoreError."""
        return await asyncio.to_thread(self._acquire)

    async def renew(self) -> Lease:
        """Check that the lease is still valid, and return it. Raises FencedError if the lease is lost."""
        return await asyncio.to_thread(self._renew)

    async def release(self) -> None:
        """Release the lease, if this process has it."""
        self._lease = None
        self._lock.release()

    async def close(self) -> None:
        """Release the lease and close the database."""
        await asyncio.to_thread(self._close)

    def _acquire(self) -> Lease:
        if not self._lock.acquire():
            raise LeaseHeldError(self.location, self._lock.holder())
        try:
            epoch = self._lead()
        except BaseException:
            self._lock.release()
            raise
        self._lease = Lease(f"the process {os.getpid()}", epoch)
        return self._lease

    def _lead(self) -> int:
        """Open the database as its leader, and return the new epoch.

        If the disk is full, its entries are kept in memory.
        """
        self._unwritable = None
        try:
            self._open_leading()
            with self._transaction() as database:
                database.execute("UPDATE leader SET epoch = epoch + 1")
                return int(database.execute("SELECT epoch FROM leader").fetchone()[0])
        except UnwritableError:
            self._close_database()
            self._unwritable, epoch = _read_only(self.directory / DATABASE)
            return epoch + 1

    def _reopen(self) -> None:
        """Open a database that previously could not be written to.

        Raises StoreError if it still cannot be written to.
        """
        with self._reopening:
            if self._unwritable is None or self._lease is None:
                return
            try:
                self._open_leading()
                with self._transaction() as database:
                    database.execute("UPDATE leader SET epoch = ?", (self._lease.epoch,))
            except StoreError:
                self._close_database()
                raise
            self._unwritable = None

    def _renew(self) -> Lease:
        lease = self._lease
        if lease is None or not self._lock.held():
            raise FencedError(f"the lock on {self.location} has been lost")
        if self._unwritable is not None:
            return lease
        with self._transaction() as database:
            _check_epoch(database, lease.epoch)
        return lease

    def _close(self) -> None:
        with self._turn:
            self._close_database()
            self._lease = None
            self._lock.release()

    def _close_database(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    # ── The entries ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def read(self, prefix: str = "") -> tuple[StoreEntry, ...]:
        """Return all entries with the prefix, sorted by key."""
        return await asyncio.to_thread(self._read, prefix)

    async def put(self, key: str, value: str, expected_version: str, epoch: int) -> StoreEntry:
        """Write one key. Raises FencedError and ConflictError."""
        return await asyncio.to_thread(self._put, key, value, expected_version, epoch)

    async def delete(self, key: str, expected_version: str, epoch: int) -> None:
        """Delete one key. Raises FencedError and ConflictError."""
        await asyncio.to_thread(self._delete, key, expected_version, epoch)

    async def watch(self, *prefixes: str) -> AsyncIterator[KeyChange]:
        """Yield all entries with one of the prefixes, then every later change."""
        entries: tuple[StoreEntry, ...] = ()
        while True:
            before, entries = entries, tuple(item for item in await self.read() if matches(item.key, prefixes))
            for change in changes_between(before, entries):
                yield change
            await asyncio.sleep(_POLL_INTERVAL)

    def _read(self, prefix: str) -> tuple[StoreEntry, ...]:
        kept = self._unwritable
        if kept is not None:
            return tuple(entry for entry in kept if entry.key.startswith(prefix))
        query = "SELECT key, value, version FROM entries WHERE substr(key, 1, ?) = ? ORDER BY key"
        with self._transaction("BEGIN") as database:
            rows = database.execute(query, (len(prefix), prefix)).fetchall()
        return tuple(StoreEntry(key, value, str(version)) for key, value, version in rows)

    def _put(self, key: str, value: str, expected_version: str, epoch: int) -> StoreEntry:
        self._check_directory()
        with self._transaction() as database:
            _check_epoch(database, epoch)
            _check_version(database, key, expected_version)
            return sqlite_schema.write(database, key, value)

    def _delete(self, key: str, expected_version: str, epoch: int) -> None:
        self._check_directory()
        with self._transaction() as database:
            _check_epoch(database, epoch)
            _check_version(database, key, expected_version)
            database.execute("DELETE FROM entries WHERE key = ?", (key,))

    def _check_directory(self) -> None:
        """Raise FencedError if the directory was removed or replaced: a write would go to an unlinked file.

        Raises StoreError if the database cannot be written to yet.
        """
        if self._lease is not None and not self._lock.held():
            raise FencedError(f"the directory {self.location} is not the directory that this process locked")
        self._reopen()

    @contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        with self._turn:
            try:
                if self._database is None:
                    self._database = self._open_reading()
                with self._database:
                    self._database.execute(begin)
                    yield self._database
            except sqlite_schema.UNREADABLE as error:
                raise _store_error(self.directory, error) from error

    # ── The file ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _open_reading(self) -> sqlite3.Connection:
        """Open the database without the lease, and without creating or repairing it. Raises StoreError."""
        file = self.directory / DATABASE
        if not file.is_file():
            raise StoreError(f"the state in {self.directory} does not exist yet")
        database = _connect(file)
        if sqlite_schema.schema_of(database) != VERSION:
            database.close()
            raise StoreError(f"the state in {self.directory} has another schema version: the leader must open it first")
        return database

    def _open_leading(self) -> None:
        """Open the database with the lease. The intact entries of a damaged database are copied into a new one."""
        file = self.directory / DATABASE
        self._close_database()
        try:
            self._database = _prepared(file)
        except DamagedError as damage:
            aside = _set_aside(file)
            self._database = _prepared(file)
            rest = _salvaged(aside, self._database)
            self._notes.append(
                f"the database {file} cannot be used ({damage}): it was renamed to {aside.name}, and a new database "
                f"was created {rest}"
            )


def _is_open_to_others(mode: int) -> bool:
    """Return whether a directory with this mode is (probably unintentionally) writable by other users.

    A setgid directory is intentionally shared with its group: this is how Kubernetes prepares the volume of a pod with
    an `fsGroup` (2775), and only that pod is in the group.
    """
    by_group, by_all = mode & stat.S_IWGRP, mode & stat.S_IWOTH
    return bool(by_all or (by_group and not mode & stat.S_ISGID))


def _connect(file: Path, mode: str = "rw") -> sqlite3.Connection:
    """Connect without implicit transactions. Damaged text is detected by its checksum, not here."""
    address = f"{file.absolute().as_uri()}?mode={mode}"
    database = sqlite3.connect(address, uri=True, check_same_thread=False, timeout=5.0, isolation_level=None)
    database.text_factory = _decoded
    return database


def _decoded(data: bytes) -> str:
    return data.decode(errors="replace")


def _prepared(file: Path) -> sqlite3.Connection:
    """Open, check and migrate the database. Raises DamagedError, and StoreError if the disk fails."""
    for place in (file, *(file.with_name(file.name + end) for end in _SIDE_FILES)):
        if _is_irregular(place):
            raise DamagedError(f"{place.name} is not a regular file")
    with as_store_error(file.parent):
        os.close(open_private(file))
    database = _connect(file)
    try:
        sqlite_schema.prepare(database)
    except sqlite_schema.UNREADABLE as error:
        database.close()
        if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise _store_error(file.parent, error) from error
        raise DamagedError(str(error)) from error
    except BaseException:
        database.close()
        raise
    return database


def _is_irregular(file: Path) -> bool:
    try:
        return not stat.S_ISREG(file.lstat().st_mode)
    except OSError:
        return False


def _set_aside(file: Path) -> Path:
    """Rename the database files so that their names contain the time, and delete the oldest renamed ones."""
    aside = file.with_name(f"{file.name}.damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
    with as_store_error(file.parent):
        for end in ("", *_SIDE_FILES):
            with suppress(FileNotFoundError):
                file.with_name(file.name + end).replace(aside.with_name(aside.name + end))
        for old in sorted(file.parent.glob(f"{file.name}.damaged-*Z"))[:-_SET_ASIDE]:
            for end in ("", *_SIDE_FILES):
                with suppress(OSError):
                    old.with_name(old.name + end).unlink()
    return aside


def _salvaged(aside: Path, database: sqlite3.Connection) -> str:
    """Copy the intact entries of the renamed file. Returns the copied and the lost entries, for the log."""
    if _is_irregular(aside) or not aside.is_file():
        return "empty"
    beside = [place for end in _SIDE_FILES if not (place := aside.with_name(aside.name + end)).exists()]
    try:
        damaged = _connect(aside, "ro")
        try:
            copied, lost = sqlite_schema.salvage(damaged, database)
        finally:
            damaged.close()
    except sqlite_schema.UNREADABLE:
        return "empty"
    finally:
        for place in beside:
            place.unlink(missing_ok=True)
    content = f"with its intact entries: {', '.join(sorted(copied))}" if copied else "empty"
    return f"{content}; lost: {', '.join(sorted(lost))}" if lost else content


def _store_error(directory: Path, error: Exception) -> StoreError:
    """Return the error with which the store responds."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    kind = UnwritableError if code in _FULL else StoreError
    return kind(f"the state in {directory}: {error}")


def _read_only(file: Path) -> tuple[tuple[StoreEntry, ...], int]:
    """Return the entries, sorted by key, and the epoch of a database that cannot be written to.

    A connection with exclusive locking needs no shared-memory file, so it also reads the write-ahead log.
    """
    entries: dict[str, StoreEntry] = {}
    epoch = int(time.time())
    with suppress(*sqlite_schema.UNREADABLE):
        database = _connect(file)
        try:
            database.execute("PRAGMA locking_mode = EXCLUSIVE")
            entries = {key: entry for key, entry in sqlite_schema.readable(database) if entry is not None}
            epoch = sqlite_schema.epoch_of(database)
        finally:
            database.close()
    return tuple(entries[key] for key in sorted(entries)), epoch


def _check_epoch(database: sqlite3.Connection, epoch: int) -> None:
    current = database.execute("SELECT epoch FROM leader").fetchone()[0]
    if epoch != current:
        raise FencedError(f"epoch {epoch} is outdated: the current one is {current}")


def _check_version(database: sqlite3.Connection, key: str, expected: str) -> None:
    row = database.execute("SELECT version FROM entries WHERE key = ?", (key,)).fetchone()
    version = ABSENT if row is None else str(row[0])
    if version != expected:
        raise ConflictError(f"{key} has the version {version or 'none'}, not {expected or 'none'}")

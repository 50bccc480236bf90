"""What must outlive the process, in a SQLite database: the last good fleet, which replicas are being drained, what the
control loop had decided, and what an operator holds by hand.

One process at a time has the state: a second one waits for the lock and takes over. A database that cannot be read is
set aside, never deleted, and the start goes on without it. Keys and certificates are never kept: the fleet is kept as
the texts of its YAML files and of its files of targets, and names the others by path.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from lbctl.base.diagnostics import show
from lbctl.control.overrides import Override, Overrides
from lbctl.ir.weight import Weight
from lbctl.model.load import Text
from lbctl.serve.live import Live

__all__ = ["Kept", "Store", "StoreError", "Text"]

DATABASE = "lbctl.db"
_LOCK = "lock"
_PAUSE = 0.2
"""Seconds between two looks at a lock that another process has."""
_SET_ASIDE = 3
"""How many broken databases are kept."""
VERSION = 2
_SCHEMA = """
CREATE TABLE fleet (id INTEGER PRIMARY KEY CHECK (id = 1), version TEXT NOT NULL, body TEXT NOT NULL);
CREATE TABLE discovered (name TEXT PRIMARY KEY, addresses TEXT NOT NULL);
CREATE TABLE drains (pool TEXT, replica TEXT, since REAL NOT NULL, PRIMARY KEY (pool, replica));
"""
_SECOND = """
CREATE TABLE live (id INTEGER PRIMARY KEY CHECK (id = 1), at REAL NOT NULL, body TEXT NOT NULL);
CREATE TABLE overrides (
    kind TEXT, pool TEXT, replica TEXT, value REAL, reason TEXT NOT NULL, since REAL NOT NULL, until REAL,
    PRIMARY KEY (kind, pool, replica)
);
"""
_KEEP_LIVE = """
INSERT INTO live VALUES (1, ?, ?) ON CONFLICT (id) DO UPDATE SET at = excluded.at, body = excluded.body
"""
_KEEP_FLEET = """
INSERT INTO fleet VALUES (1, ?, ?)
ON CONFLICT (id) DO UPDATE SET version = excluded.version, body = excluded.body
WHERE (version, body) <> (excluded.version, excluded.body)
"""


class StoreError(Exception):
    """The state cannot be kept or read; in words for the log."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A fleet as it can be read again. `targets`: place of a file_sd file → its content; `discovered`: what
    discovery's answers are known by → addresses; `version`: of the snapshot that was made of it."""

    texts: tuple[Text, ...]
    targets: Mapping[str, bytes] = field(default_factory=dict)
    discovered: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    version: str = ""


class Store:
    """`open`, then `lock`; from then on the rest, from any thread. All methods but `lock` block."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.notes: list[str] = []
        """What was found when the database was opened, for the log."""
        self._handle = -1
        self._database: sqlite3.Connection | None = None
        self._turn = threading.Lock()

    @classmethod
    def open(cls, directory: Path) -> Store:
        """The state in `directory`, which is made (0700) where it is missing. StoreError where that cannot be."""
        with _words(directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.access(directory, os.W_OK | os.X_OK):
                raise StoreError(f"the state directory {show(str(directory))} cannot be written")
        return cls(directory)

    async def lock(self, waiting: Callable[[str], None]) -> None:
        """Returns once this process alone has the state; tells `waiting` whom it waits for, each holder once."""
        told = ""
        while not self._locked():
            holder = self._holder()
            if holder != told:
                waiting(f"{self.directory} is in use by {holder}: waiting until that one ends")
                told = holder
            await asyncio.sleep(_PAUSE)
        self._open_database()

    def close(self) -> None:
        """Gives the state up."""
        with self._turn:
            if self._database is not None:
                self._database.close()
                self._database = None
            if self._handle >= 0:
                os.close(self._handle)
                self._handle = -1

    # ── What is kept ─────────────────────────────────────────────────────────────────────────────────────────────────

    def keep_fleet(self, fleet: Kept) -> None:
        """In the place of the one that was kept before. StoreError: then that one is still kept."""
        body = json.dumps(
            {
                "texts": [[text.name, text.root, _as_text(text.data)] for text in fleet.texts],
                "targets": {place: _as_text(data) for place, data in fleet.targets.items()},
            }
        )
        with self._transaction() as database:
            database.execute(_KEEP_FLEET, (fleet.version, body))
            database.execute("DELETE FROM discovered")
            rows = ((name, json.dumps(addresses)) for name, addresses in sorted(fleet.discovered.items()))
            database.executemany("INSERT INTO discovered VALUES (?, ?)", rows)

    def last_fleet(self) -> Kept | None:
        """None where none was kept."""
        with self._transaction() as database:
            row = database.execute("SELECT version, body FROM fleet").fetchone()
            answers = database.execute("SELECT name, addresses FROM discovered").fetchall()
        if row is None:
            return None
        try:
            return _fleet(row[0], json.loads(row[1]), answers)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(f"the kept fleet in {self.directory} cannot be understood: {error!r}") from error

    def keep_drains(self, drains: Mapping[tuple[str, str], float]) -> None:
        """(pool, replica) → since when it is drained, in seconds since the epoch; in the place of all before."""
        with self._transaction() as database:
            database.execute("DELETE FROM drains")
            rows = ((pool, replica, since) for (pool, replica), since in sorted(drains.items()))
            database.executemany("INSERT INTO drains VALUES (?, ?, ?)", rows)

    def drains(self) -> dict[tuple[str, str], float]:
        with self._transaction() as database:
            rows = database.execute("SELECT pool, replica, since FROM drains").fetchall()
        return {(pool, replica): since for pool, replica, since in rows}

    def keep_live(self, live: Live, at: float) -> None:
        """What the control loop has decided, which held at that time, in seconds since the epoch."""
        body = json.dumps({"weights": live.weights, "out": live.out})
        with self._transaction() as database:
            database.execute(_KEEP_LIVE, (at, body))

    def live(self) -> tuple[Live, float] | None:
        """The same and its time; None where nothing was kept."""
        with self._transaction() as database:
            row = database.execute("SELECT at, body FROM live").fetchone()
        if row is None:
            return None
        try:
            return _live(json.loads(row[1])), row[0]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(f"the kept weights in {self.directory} cannot be understood: {error!r}") from error

    def keep_overrides(self, overrides: Overrides) -> None:
        """In the place of all before."""
        with self._transaction() as database:
            database.execute("DELETE FROM overrides")
            database.executemany("INSERT INTO overrides VALUES (?, ?, ?, ?, ?, ?, ?)", map(astuple, overrides))

    def overrides(self) -> Overrides:
        with self._transaction() as database:
            rows = database.execute("SELECT * FROM overrides ORDER BY kind, pool, replica").fetchall()
        return tuple(Override(*row) for row in rows)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._turn:
            if self._database is None:
                raise StoreError(f"the state in {self.directory} is not open")
            try:
                with self._database:
                    yield self._database
            except sqlite3.Error as error:
                raise StoreError(f"the state in {self.directory}: {error}") from error

    # ── The lock ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _locked(self) -> bool:
        """Whether the lock is ours now; its file then holds our pid."""
        with _words(self.directory):
            handle = _opened(self.directory / _LOCK)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _is_there(self.directory / _LOCK, handle):
                    raise BlockingIOError
            except BaseException as error:
                os.close(handle)
                if isinstance(error, BlockingIOError):
                    return False
                raise
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            self._handle = handle
            return True

    def _holder(self) -> str:
        try:
            text = (self.directory / _LOCK).read_text("ascii").strip()
        except (OSError, ValueError):
            text = ""
        return f"the process {text}" if text.isdecimal() else "another process"

    # ── The database ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _open_database(self) -> None:
        file = self.directory / DATABASE
        try:
            self._database = _connected(file)
        except _BrokenError as broken:
            self.notes.append(_set_aside(file, str(broken)))
            self._database = _connected(file)


class _BrokenError(Exception):
    """This is no database of ours; why."""


def _connected(file: Path) -> sqlite3.Connection:
    """Open, whole, and with our tables. StoreError where the disk refuses."""
    with _words(file.parent):
        os.close(_opened(file))
    database = sqlite3.connect(file, check_same_thread=False, timeout=5.0)
    try:
        _prepare(database)
    except BaseException as error:
        database.close()
        if isinstance(error, sqlite3.OperationalError):
            raise StoreError(f"the state in {file.parent}: {error}") from error
        if isinstance(error, sqlite3.DatabaseError):
            raise _BrokenError(str(error)) from error
        raise
    return database


def _prepare(database: sqlite3.Connection) -> None:
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise _BrokenError(f"it was written by a later lbctl (schema {version})")
    found = database.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise _BrokenError(str(found))
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    if version < VERSION:
        missing = _SECOND if version else f"{_SCHEMA} {_SECOND}"
        database.executescript(f"BEGIN; {missing} PRAGMA user_version = {VERSION}; COMMIT;")


def _set_aside(file: Path, why: str) -> str:
    """Out of the way, under a name with the time; the oldest of those go. What happened, in words."""
    name = f"{file.name}.broken-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    aside = file.with_name(name)
    with _words(file.parent):
        file.replace(aside)
        for end in ("-wal", "-shm"):
            with suppress(FileNotFoundError):
                file.with_name(file.name + end).replace(aside.with_name(name + end))
        for old in sorted(file.parent.glob(f"{file.name}.broken-*Z"))[:-_SET_ASIDE]:
            for end in ("", "-wal", "-shm"):
                old.with_name(old.name + end).unlink(missing_ok=True)
    return f"the database {file} cannot be read ({why}): it is now {aside.name}, and a new one was made"


def _fleet(version: str, body: Mapping[str, Any], answers: Iterable[tuple[str, str]]) -> Kept:
    return Kept(
        texts=tuple(Text(name, _as_bytes(data), root) for name, root, data in body["texts"]),
        targets={place: _as_bytes(data) for place, data in body["targets"].items()},
        discovered={name: tuple(json.loads(addresses)) for name, addresses in answers},
        version=version,
    )


def _live(body: Mapping[str, Any]) -> Live:
    return Live(
        {
            pool: {name: Weight(*map(float, weight)) for name, weight in each.items()}
            for pool, each in body["weights"].items()
        },
        {pool: {name: tuple(words) for name, words in each.items()} for pool, each in body["out"].items()},
    )


def _as_text(data: bytes) -> str:
    """Any bytes, readable where they are text."""
    return data.decode(errors="surrogateescape")


def _as_bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _opened(file: Path) -> int:
    """A handle on a file of our own, made where it is missing: for its owner alone, never through a link."""
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if stat.S_IMODE(os.fstat(handle).st_mode) != 0o600:
        with suppress(PermissionError):
            os.fchmod(handle, 0o600)
    return handle


def _is_there(file: Path, handle: int) -> bool:
    """Whether the handle is of the file that has this name now."""
    try:
        return os.path.samestat(os.fstat(handle), file.stat())
    except FileNotFoundError:
        return False


@contextmanager
def _words(directory: Path) -> Iterator[None]:
    try:
        yield
    except BlockingIOError:
        raise
    except (OSError, ValueError) as error:
        why = (getattr(error, "strerror", None) or str(error)).lower()
        raise StoreError(f"the state directory {show(str(directory))} cannot be used: {why}") from error

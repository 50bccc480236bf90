"""The tables of the SQLite state: creation, migration from earlier schemas, checks, and salvage of damaged files."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress

from lbctl.base.foreign_json import parse
from lbctl.store.interface import StoreEntry
from lbctl.store.records import MAX_TEXT_VALUES

VERSION = 3
_TABLES = """
CREATE TABLE entries (key TEXT PRIMARY KEY, value TEXT NOT NULL, version INTEGER NOT NULL, checksum TEXT NOT NULL);
CREATE TABLE leader (id INTEGER PRIMARY KEY CHECK (id = 1), epoch INTEGER NOT NULL, revision INTEGER NOT NULL);
"""
_OLD_TABLES = ("fleet", "discovered", "drains", "live", "overrides")
_OVERRIDE_KEYS = ("kind", "pool", "replica", "value", "reason", "since", "until")


UNREADABLE = (sqlite3.Error, ValueError, TypeError, OverflowError, MemoryError)
"""Exceptions raised for a damaged file. Python's module may even fail to decode SQLite's own messages about the
damage."""


class DamagedError(Exception):
    """This version of lbctl cannot use the file as its state. The message gives the reason."""


def prepare(database: sqlite3.Connection) -> None:
    """Check the whole file and migrate its tables to the current schema. Raises DamagedError."""
    version = schema_of(database)
    if version > VERSION:
        raise DamagedError(f"it was written by a later version of lbctl (schema {version})")
    problem = database.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        raise DamagedError(str(problem))
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    if version < VERSION:
        _migrate(database)
    damaged = [str(row[0]) for row in _rows(database) if _entry(row) is None]
    if damaged:
        raise DamagedError(f"the content of {', '.join(damaged)} does not match its checksum")
    leader = database.execute("SELECT epoch, revision FROM leader").fetchone()
    if leader is None or not all(isinstance(item, int) for item in leader):
        raise DamagedError("it has no epoch")


def schema_of(database: sqlite3.Connection) -> int:
    """Return the version of the schema; 0 for an empty file."""
    return int(database.execute("PRAGMA user_version").fetchone()[0])


def write(database: sqlite3.Connection, key: str, value: str) -> StoreEntry:
    """Write a value as the next revision, within the caller's transaction."""
    database.execute("UPDATE leader SET revision = revision + 1")
    revision = database.execute("SELECT revision FROM leader").fetchone()[0]
    database.execute(
        "INSERT INTO entries VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET "
        "value = excluded.value, version = excluded.version, checksum = excluded.checksum",
        (key, value, revision, _checksum(key, value)),
    )
    return StoreEntry(key, value, str(revision))


def salvage(damaged: sqlite3.Connection, database: sqlite3.Connection) -> tuple[list[str], list[str]]:
    """Copy every intact entry, and the epoch. Return the copied keys and the lost keys."""
    copied: list[str] = []
    lost: list[str] = []
    with database:
        for key, entry in readable(damaged):
            if entry is None:
                lost.append(key)
            else:
                write(database, entry.key, entry.value)
                copied.append(entry.key)
        database.execute("UPDATE leader SET epoch = ?", (epoch_of(damaged),))
    return copied, lost


def epoch_of(damaged: sqlite3.Connection) -> int:
    """Return the epoch of the file.

    If the epoch is unreadable, return the clock's time, which is greater than any epoch counted from 1.
    """
    with suppress(*UNREADABLE):
        return int(damaged.execute("SELECT epoch FROM leader").fetchone()[0])
    return int(time.time())


def _rows(database: sqlite3.Connection) -> Iterator[tuple[object, ...]]:
    yield from database.execute("SELECT key, value, version, checksum FROM entries ORDER BY key")


def readable(damaged: sqlite3.Connection) -> Iterator[tuple[str, StoreEntry | None]]:
    """Yield each readable key with its entry, reading from both ends up to the first unreadable row.

    The entry is None if it is not intact.
    """
    read_keys: set[object] = set()
    for order in ("ASC", "DESC"):
        with suppress(*UNREADABLE):
            for row in damaged.execute(f"SELECT key, value, version, checksum FROM entries ORDER BY rowid {order}"):
                if row[0] not in read_keys:
                    read_keys.add(row[0])
                    yield str(row[0]), _entry(row)


def _entry(row: tuple[object, ...]) -> StoreEntry | None:
    """Return a row's entry; None if its checksum does not match."""
    key, value, version, checksum = row
    if not isinstance(key, str) or not isinstance(value, str) or checksum != _checksum(key, value):
        return None
    return StoreEntry(key, value, str(version))


def _checksum(key: str, value: str) -> str:
    return hashlib.sha256(f"{len(key)}:{key}{value}".encode()).hexdigest()


# ── Earlier schemas ──────────────────────────────────────────────────────────────────────────────────────────────────


def _migrate(database: sqlite3.Connection) -> None:
    """Migrate from schemas 1 and 2, which had a table for each kind of record."""
    old = {str(row[0]) for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    entries = list(_old_entries(database, old)) if old else []
    with database:
        database.execute("BEGIN IMMEDIATE")
        for statement in _TABLES.split(";"):
            database.execute(statement)
        database.execute("INSERT INTO leader VALUES (1, 0, 0)")
        for key, value in entries:
            write(database, key, value)
        for table in sorted(old.intersection(_OLD_TABLES)):
            database.execute(f"DROP TABLE {table}")
        database.execute(f"PRAGMA user_version = {VERSION}")


def _old_entries(database: sqlite3.Connection, tables: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the (key, value) pairs of the old tables in the current format; `records` validates the values."""

    def rows(table: str, columns: str) -> list[tuple[object, ...]]:
        return database.execute(f"SELECT {columns} FROM {table}").fetchall() if table in tables else []

    for version, body in rows("fleet", "version, body"):
        discovered = {str(name): _loaded(addresses) for name, addresses in rows("discovered", "name, addresses")}
        yield "fleet/files", str(body)
        yield "fleet/served", _dumped({"version": version, "discovered": discovered})
    if drains := rows("drains", "pool, replica, since"):
        yield "drains", _dumped(drains)
    for at, body in rows("live", "at, body"):
        yield "loop_output", _dumped({"at": at, "output": _loaded(body)})
    if overrides := rows("overrides", ", ".join(_OVERRIDE_KEYS)):
        yield "overrides", _dumped([dict(zip(_OVERRIDE_KEYS, row, strict=True)) for row in overrides])


def _dumped(value: object) -> str:
    """Return the value as JSON. A value that JSON cannot express becomes text that is not accepted as any record."""
    return json.dumps(value, default=repr)


def _loaded(text: object) -> object:
    """Return the value of JSON text; other text is returned unchanged."""
    try:
        return parse(str(text), MAX_TEXT_VALUES)
    except ValueError:
        return text

"""The saved state of a running `lbctl serve`: read it, or make it read-only."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from tests.support.processes.control import ControlPlane


@contextmanager
def refusing(control: ControlPlane) -> Iterator[None]:
    """Make the database reject new and changed values, as with a full disk."""
    database = sqlite3.connect(control.state / "lbctl.db", isolation_level=None, timeout=60)
    for event in ("INSERT", "UPDATE"):
        database.execute(
            f"CREATE TRIGGER refuse_{event} BEFORE {event} ON entries BEGIN SELECT RAISE(ABORT, 'no room'); END"
        )
    try:
        yield
    finally:
        for event in ("INSERT", "UPDATE"):
            database.execute(f"DROP TRIGGER refuse_{event}")
        database.close()


def saved(control: ControlPlane, key: str) -> str:
    """Return the saved value of this key in the database; empty if there is none."""
    with closing(sqlite3.connect(control.state / "lbctl.db", timeout=60)) as database:
        row = database.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()
    return str(row[0]) if row else ""

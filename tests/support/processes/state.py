"""Makes the state of a running `lbctl serve` read-only."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

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

"""`lbctl drain --wait-idle`, which waits until a drained replica has finished its requests."""

from __future__ import annotations

import time

import click

from lbctl.api import schema
from lbctl.api.client import ServeClient, UnavailableError
from lbctl.base.printable import plain

_DEGRADED = 3
_POLL_INTERVAL = 0.5
_MARGIN = 15.0
"""Maximum time, in seconds, to wait for the proxies' last report after the drain deadline."""
_UNKNOWN_FOR = 15.0
"""Maximum time, in seconds, for which the number of requests in flight may be unknown. Proxies report it every 5 s."""


def await_idle(remote: ServeClient, pool: str, replica: str) -> int:
    """Wait until the drained replica has no requests in flight.

    Return the exit code, which is 3 if the replica still has requests or their number is unknown.
    """
    began = time.monotonic()
    deadline = began
    row: schema.Replica | None = None
    while row is None or time.monotonic() < deadline:
        try:
            found = _look(remote, pool, replica)
        except UnavailableError:
            if row is None:
                raise
            time.sleep(_POLL_INTERVAL)
            continue
        if found is None:
            return _end(pool, replica, "it is no longer in the pool", 0)
        row, drain_deadline = found
        deadline = began + drain_deadline + _MARGIN
        if row.state == "removed":
            return _removed(pool, row)
        if row.state not in ("draining", "drained"):
            return _end(pool, replica, f"it is no longer draining: its state is {row.state}", _DEGRADED)
        if row.idle:
            return _end(pool, replica, "it has no requests in flight", 0)
        if row.idle is None and not row.in_flight and time.monotonic() - began > _UNKNOWN_FOR:
            break
        time.sleep(_POLL_INTERVAL)
    return _end(pool, replica, row.state_reason, _DEGRADED)


def _look(remote: ServeClient, pool: str, replica: str) -> tuple[schema.Replica, float] | None:
    """Return the replica's row and its pool's drain deadline in seconds, or None if the replica does not exist."""
    for item in remote.get("/api/v1/pools", schema.Pools).pools:
        if item.name == pool:
            row = next((each for each in item.replicas if each.name == replica), None)
            return None if row is None else (row, item.drain_deadline_seconds)
    return None


def _removed(pool: str, row: schema.Replica) -> int:
    if row.idle:
        return _end(pool, row.name, "it has no requests in flight", 0)
    return _end(pool, row.name, "its drain deadline has passed, and it was removed from the pool", _DEGRADED)


def _end(pool: str, replica: str, message: str, code: int) -> int:
    click.echo(f"lbctl: {pool}/{replica}: {plain(message)}", err=True)
    return code

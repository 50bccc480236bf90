"""API rows about previously published fleets and rollbacks."""

from __future__ import annotations

from lbctl.api import schema
from lbctl.serve.api.status_rows import timestamp
from lbctl.serve.fleet.history import FleetHistory
from lbctl.store.history import ServedFleet


def served(history: FleetHistory) -> schema.ServedFiles | None:
    """Return the row for the published files; None before the first fleet."""
    current, rollback = history.current, history.rollback
    if current is None:
        return None
    return schema.ServedFiles(
        digest=current.digest,
        since=timestamp(current.at),
        commit=history.revision.commit or None,
        dirty=history.revision.dirty,
        rollback=schema.Rollback(
            ignored=rollback.ignored,
            since=timestamp(rollback.at),
            author=rollback.actor,
            reason=rollback.reason or None,
        )
        if rollback
        else None,
    )


def entries(history: FleetHistory) -> tuple[schema.HistoryEntry, ...]:
    """Return the history's rows, oldest first."""
    return tuple(_entry(item, item is history.current) for item in history.entries)


def _entry(item: ServedFleet, current: bool) -> schema.HistoryEntry:
    return schema.HistoryEntry(
        digest=item.digest,
        at=timestamp(item.at),
        current=current,
        commit=item.revision.commit or None,
        dirty=item.revision.dirty,
        action=item.cause.action,
        actor=item.cause.actor,
        reason=item.cause.reason or None,
        version=item.version,
        pools=item.pools,
        replicas=item.replicas,
    )

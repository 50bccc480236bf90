"""Replicas that a proxy has just failed to reach: they are not picked for a moment, until the health checks know more.

A replica that refuses connections answers nothing, so it looks idle, and a choice by load would give it every request.
A suspicion lasts half a second at first, and twice as long each time, up to ten seconds; an answer ends it.
"""

from __future__ import annotations

from dataclasses import replace

from lbctl.pick.table import PoolTable

_FIRST, _LONGEST = 0.5, 10.0
_FORGOTTEN = 30.0
"""Seconds after which a suspicion that has ended no longer makes the next one longer."""
_REASON = "a proxy could not reach it"


class Suspects:
    """The suspicions of all pools. Times are seconds on one clock."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, str], tuple[float, float]] = {}
        """(pool, replica) → the end of its suspicion, and how long it lasts."""

    def failed(self, pool: str, replica: str, now: float) -> None:
        """Note that a proxy could not reach the replica. It changes nothing while the replica is suspected."""
        until, length = self._until.get((pool, replica), (float("-inf"), 0.0))
        if now < until:
            return
        length = min(2 * length, _LONGEST) if length and now - until < _FORGOTTEN else _FIRST
        self._until[pool, replica] = now + length, length

    def answered(self, pool: str, replica: str) -> None:
        """Note that the replica has answered."""
        if self._until:
            self._until.pop((pool, replica), None)

    def without(self, table: PoolTable, now: float) -> PoolTable:
        """Return the table with the suspected replicas marked unfit."""
        if not self._until:
            return table
        suspected = {name for (pool, name), (until, _) in self._until.items() if pool == table.pool and now < until}
        if not suspected:
            return table
        candidates = tuple(
            replace(item, fit=False, reason=_REASON) if item.fit and item.name in suspected else item
            for item in table.candidates
        )
        return replace(table, candidates=candidates)

"""Replicas that a proxy has just failed to reach, or that were busy: they are not picked for a moment.

A replica that refuses connections answers nothing, so it looks idle, and a choice by load would give it every request.
A suspicion lasts half a second at first, and twice as long each time, up to ten seconds,
until the health checks know more; an answer ends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from lbctl.pick.table import PoolTable

_FIRST_DURATION, _MAX_DURATION = 0.5, 10.0
_FORGOTTEN = 30.0
"""Seconds after which a suspicion that has ended no longer makes the next one longer."""
_UNREACHED, _BUSY = "a proxy could not reach it", "it was busy, or a proxy could not reach it"


class _Suspicion(NamedTuple):
    """Why a replica is not picked, until when, and how long that lasts. Times are seconds on one clock."""

    until: float = float("-inf")
    length: float = 0.0
    reason: str = ""


class Suspects:
    """The suspicions of all pools."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], _Suspicion] = {}
        """(pool, replica) → its suspicion."""
        self._marked: dict[str, tuple[PoolTable, Mapping[str, str], PoolTable]] = {}
        """Pool → its table, the reasons of its suspected replicas, and the table with these marked."""

    def __len__(self) -> int:
        """The number of suspicions that are remembered."""
        return len(self._of)

    def failed(self, pool: str, replica: str, now: float) -> None:
        """Note that a proxy could not reach the replica. It changes nothing while the replica is suspected."""
        last = self._of.get((pool, replica), _Suspicion())
        if now < last.until:
            return
        length = (
            min(2 * last.length, _MAX_DURATION) if last.length and now - last.until < _FORGOTTEN else _FIRST_DURATION
        )
        self._of[pool, replica] = _Suspicion(now + length, length, _UNREACHED)

    def busy(self, pool: str, replica: str, now: float) -> None:
        """Note that a request went on to another replica; what is reported does not say why.

        The replica is left alone for a moment, which is no longer the next time: to be busy is no fault.
        """
        if now >= self._of.get((pool, replica), _Suspicion()).until:
            self._of[pool, replica] = _Suspicion(now + _FIRST_DURATION, 0.0, _BUSY)

    def answered(self, pool: str, replica: str) -> None:
        """Note that the replica has answered."""
        if self._of:
            self._of.pop((pool, replica), None)

    def expire(self, now: float) -> None:
        """Forget what makes no difference any more; replicas that have left never answer."""
        self._of = {key: item for key, item in self._of.items() if now - item.until < _FORGOTTEN}
        self._marked.clear()

    def without(self, table: PoolTable, now: float) -> PoolTable:
        """Return the table with the suspected replicas marked unfit."""
        if not self._of:
            return table
        reasons = {
            name: item.reason for (pool, name), item in self._of.items() if pool == table.pool and now < item.until
        }
        if not reasons:
            return table
        kept = self._marked.get(table.pool)
        if kept is None or kept[0] is not table or kept[1] != reasons:
            kept = self._marked[table.pool] = table, reasons, _marked(table, reasons)
        return kept[2]


def _marked(table: PoolTable, reasons: Mapping[str, str]) -> PoolTable:
    candidates = tuple(
        replace(item, fit=False, reason=reasons[item.name]) if item.fit and item.name in reasons else item
        for item in table.candidates
    )
    return replace(table, candidates=candidates)

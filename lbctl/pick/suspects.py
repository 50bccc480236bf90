"""Replicas that are temporarily not picked because they are unreachable from a proxy, busy, or stopped.

A replica that refuses connections looks idle, so a load-based choice would send every request to it. The first
suspicion lasts half a second, and each subsequent one lasts twice as long as the previous one, up to ten seconds. This
covers the time until a health check detects the failure. A response from the replica ends the suspicion.
`lbctl.pick.stalls` determines which engines have stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from lbctl.pick.table import PoolTable

_FIRST_DURATION, _MAX_DURATION = 0.5, 10.0
_FORGOTTEN = 30.0
"""Seconds after which a past suspicion does not lengthen the next one anymore."""
_UNREACHED, _BUSY = "a proxy could not reach it", "it was busy, or a proxy could not reach it"
_SILENT = "probably stalled: its engine has requests but makes no progress"


class _Suspicion(NamedTuple):
    """A suspicion's end, duration and reason. Times are seconds on one clock."""

    until: float = float("-inf")
    length: float = 0.0
    reason: str = ""


_Causes = tuple[dict[str, str], frozenset[str]]
"""Reasons why a pool's replicas are suspected, by name, and the pool's silent replicas."""


class Suspects:
    """The suspicions for all pools."""

    def __init__(self, silent: Mapping[str, frozenset[str]] = MappingProxyType({})) -> None:
        """`silent` maps each pool to the replicas whose engines are not making progress; it is read on each call."""
        self._silent = silent
        self._of: dict[tuple[str, str], _Suspicion] = {}
        """Maps each (pool, replica) pair to its suspicion."""
        self._marked: dict[str, tuple[PoolTable, _Causes, PoolTable]] = {}
        """Maps each pool to its table, the causes, and the table in which the replicas are marked."""

    def __len__(self) -> int:
        """Return the number of suspicions, including expired ones that still affect the duration of the next one."""
        return len(self._of)

    def failed(self, pool: str, replica: str, now: float) -> None:
        """Record that a proxy could not reach a replica. This has no effect while the replica is already suspected."""
        last = self._of.get((pool, replica), _Suspicion())
        if now < last.until:
            return
        length = (
            min(2 * last.length, _MAX_DURATION) if last.length and now - last.until < _FORGOTTEN else _FIRST_DURATION
        )
        self._of[pool, replica] = _Suspicion(now + length, length, _UNREACHED)

    def busy(self, pool: str, replica: str, now: float) -> None:
        """Record that a request was sent on to another replica, for a reason that the proxy does not report.

        The replica is then not picked for a short time. This time does not increase, because a busy replica is not
        faulty.
        """
        if now >= self._of.get((pool, replica), _Suspicion()).until:
            self._of[pool, replica] = _Suspicion(now + _FIRST_DURATION, 0.0, _BUSY)

    def answered(self, pool: str, replica: str) -> None:
        """Record that a replica has responded."""
        if self._of:
            self._of.pop((pool, replica), None)

    def expire(self, now: float) -> None:
        """Remove suspicions that have no further effect.

        This is needed because replicas that have left never respond.
        """
        self._of = {key: item for key, item in self._of.items() if now - item.until < _FORGOTTEN}
        self._marked.clear()

    def without(self, table: PoolTable, now: float) -> PoolTable:
        """Return the table with suspected replicas marked as unfit."""
        if not self._of and not self._silent:
            return table
        reasons = {
            name: item.reason for (pool, name), item in self._of.items() if pool == table.pool and now < item.until
        }
        silent = self._silent.get(table.pool, frozenset())
        if not reasons and not silent:
            return table
        causes = reasons, silent
        kept = self._marked.get(table.pool)
        if kept is None or kept[0] is not table or kept[1] != causes:
            replaceable = dict.fromkeys(_replaceable(table, silent, reasons), _SILENT)
            kept = self._marked[table.pool] = table, causes, _marked(table, reasons | replaceable)
        return kept[2]

    def stalled(self, table: PoolTable) -> frozenset[str]:
        """Return the replicas that are not picked because their engines are not making progress.

        Other suspicions are ignored, because they change too often to be used for weights. The result may therefore
        include a replica that is picked while a proxy cannot reach the others.
        """
        return frozenset(_replaceable(table, self._silent.get(table.pool, frozenset()), {}))


def _replaceable(table: PoolTable, silent: frozenset[str], reasons: Mapping[str, str]) -> set[str]:
    """Return the silent replicas for which another replica with the same priority, region and zone may be picked.

    This way, no tier of the table becomes empty for any proxy. Without `locality`, the zone is ignored.
    """
    groups: dict[tuple[object, ...], list[str]] = {}
    for item in table.candidates:
        if item.fit and item.weight > 0 and item.name not in reasons:
            groups.setdefault((item.priority, item.region, table.locality and item.zone), []).append(item.name)
    return {name for names in groups.values() if not silent.issuperset(names) for name in names if name in silent}


def _marked(table: PoolTable, reasons: Mapping[str, str]) -> PoolTable:
    candidates = tuple(
        replace(item, fit=False, reason=reasons[item.name]) if item.fit and item.name in reasons else item
        for item in table.candidates
    )
    return replace(table, candidates=candidates)

"""Replicas that are temporarily not picked because they are unreachable from a proxy, busy, or stopped.

A replica that refuses connections looks idle, so a load-based choice would send it every request. The first suspicion
lasts half a second, and each further suspicion lasts twice as long as the previous one, up to ten seconds. This covers
the time until health checks detect the failure. A response from the replica ends the suspicion. `lbctl.pick.stalls`
decides which engines have stopped, and which of them are on trial.
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
_TRIAL_LIMIT = 1
"""Maximum number of requests in flight at a replica on trial."""


class _Suspicion(NamedTuple):
    """A suspicion's end, duration and reason. Times are seconds on one clock."""

    until: float = float("-inf")
    length: float = 0.0
    reason: str = ""


_Causes = tuple[dict[str, str], frozenset[str], frozenset[str]]
"""Reasons why replicas of a pool are suspected, by name, and the pool's silent replicas and replicas on trial."""


class Suspects:
    """The suspicions for all pools."""

    def __init__(
        self,
        silent: Mapping[str, frozenset[str]] = MappingProxyType({}),
        on_trial: Mapping[str, frozenset[str]] = MappingProxyType({}),
    ) -> None:
        """`silent` maps each pool to the replicas whose engines make no progress, evaluated at each call.

        `on_trial` maps it to the replicas that must show progress with one request at a time.
        """
        self._silent, self._on_trial = silent, on_trial
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
        """Return the table with the suspected replicas marked unfit, and a limit for the replicas on trial."""
        if not self._of and not self._silent and not self._on_trial:
            return table
        reasons = {
            name: item.reason for (pool, name), item in self._of.items() if pool == table.pool and now < item.until
        }
        silent = self._silent.get(table.pool, frozenset())
        on_trial = self._on_trial.get(table.pool, frozenset())
        if not reasons and not silent and not on_trial:
            return table
        causes = reasons, silent, on_trial
        kept = self._marked.get(table.pool)
        if kept is None or kept[0] is not table or kept[1] != causes:
            replaceable = dict.fromkeys(_replaceable(table, silent, reasons), _SILENT)
            limited = on_trial & _replaceable(table, silent | on_trial, reasons)
            marked = _limited(_marked(table, reasons | replaceable), on_trial, limited)
            kept = self._marked[table.pool] = table, causes, marked
        return kept[2]

    def stalled(self, table: PoolTable) -> frozenset[str]:
        """Return the replicas that are on trial, or are not picked because their engines make no progress.

        Other suspicions are ignored, because they change too often to be used for weights. The result may therefore
        include a replica that is picked while a proxy cannot reach the others.
        """
        on_trial = self._on_trial.get(table.pool, frozenset()).intersection(item.name for item in table.candidates)
        return on_trial.union(_replaceable(table, self._silent.get(table.pool, frozenset()), {}))


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


def _limited(table: PoolTable, on_trial: frozenset[str], limited: frozenset[str]) -> PoolTable:
    """Return the table in which replicas on trial get one request at a time, even if the others are idle.

    The control plane has lowered their weights, so the largest weight of the pool replaces these weights. Only the
    replicas in `limited` get the limit: no other replica could get the remaining requests of the others.
    """
    if not on_trial:
        return table
    largest = max((item.weight for item in table.candidates), default=0.0)
    candidates = tuple(
        replace(item, weight=largest, limit=_TRIAL_LIMIT if item.name in limited else item.limit)
        if item.name in on_trial and item.weight > 0
        else item
        for item in table.candidates
    )
    return replace(table, candidates=candidates)

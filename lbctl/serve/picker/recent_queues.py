"""The picker's queues: the waiting requests, and the counts for the last minute."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from lbctl.ir.pools import QueuePolicy
from lbctl.picker.reports import PickerReport
from lbctl.picker.statistics import DurationHistogram, QueueStatistics, TenantWaits

_MINUTE = 60.0
_NOTHING = QueueStatistics()
_NO_WAITS = TenantWaits()


class QueueState(NamedTuple):
    """A pool's queue."""

    policy: QueuePolicy
    recent: QueueStatistics
    """The waiting requests, and the counts for the last minute."""
    tenants: Mapping[str, int]
    """Maps each tenant to its number of waiting requests."""


class RecentQueues:
    """Computes the last minute's counts from the reports, which contain counts since the picker started."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._process = 0
        self._history: deque[tuple[float, Mapping[str, QueueStatistics]]] = deque()
        """The time and counts of each report in the last minute."""

    def reported(self, process: int, report: PickerReport) -> None:
        """Record the report from the process with this number."""
        if process != self._process:
            self._process = process
            self._history.clear()
        now = self._clock()
        self._history.append((now, report.queues))
        while now - self._history[0][0] > _MINUTE:
            self._history.popleft()

    def recent(self) -> Mapping[str, QueueStatistics]:
        """Map each pool to its waiting requests and its counts for the last minute."""
        if not self._history:
            return {}
        before, now = self._history[0][1], self._history[-1][1]
        return {pool: _difference(counts, before.get(pool, _NOTHING)) for pool, counts in now.items()}


def _difference(now: QueueStatistics, before: QueueStatistics) -> QueueStatistics:
    """Return the increases in the counts.

    No increase is negative, even though a pool's counts restart after the pool was removed.
    """
    buckets = [max(0, new - old) for new, old in zip(now.waits.counts, before.waits.counts, strict=True)]
    tenants = {name: _increase(waits, before.tenants.get(name, _NO_WAITS)) for name, waits in now.tenants.items()}
    return QueueStatistics(
        waiting=now.waiting,
        refused_full=max(0, now.refused_full - before.refused_full),
        refused_late=max(0, now.refused_late - before.refused_late),
        left=max(0, now.left - before.left),
        waits=DurationHistogram(now.waits.bounds, buckets, max(0.0, now.waits.total - before.waits.total)),
        tenants={name: waits for name, waits in tenants.items() if waits.requests > 0},
    )


def _increase(now: TenantWaits, before: TenantWaits) -> TenantWaits:
    return TenantWaits(now.requests - before.requests, max(0.0, now.seconds - before.seconds))

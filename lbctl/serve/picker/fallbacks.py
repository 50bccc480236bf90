"""Counts requests that proxies sent without a pick, which is reported requests minus picked requests.

`recent` covers the last minute. A proxy may report its requests up to ten seconds late, so picks up to ten seconds
older may belong to them.

A separate picker may have picked requests before its first report. Requests that proxies report before that report, or
shortly after it, are therefore not counted.

The count continues across restarts of the picker, although the picker's own counts start over. Open requests in the
last report of an ended picker count as picked.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from lbctl.picker.reports import PickerReport

MIN_REQUESTS = 20
"""Minimum number of requests per minute for the share without a pick to be reported and assessed."""
_MINUTE, _LATE = 60.0, 10.0
"""Number of seconds covered by `recent`, and the maximum delay of a proxy's report."""


class RecentPicks(NamedTuple):
    """A pool's requests in the last minute."""

    requests: int
    """Requests reported by proxies."""
    picked: int
    """Picked requests that have ended."""
    missed: int
    """Lower bound on the number of requests sent without a pick."""
    in_flight: int = 0
    """Picked requests that are still in flight."""


class _Counted(NamedTuple):
    at: float
    requests: Mapping[str, int]
    picked: Mapping[str, int]


class Fallbacks:
    """`requests` returns a map from pools to the number of requests reported by proxies since the process started."""

    def __init__(self, requests: Callable[[], Mapping[str, int]], clock: Callable[[], float] = time.monotonic) -> None:
        self._requests = requests
        self._clock = clock
        self._history: deque[_Counted] = deque()
        """The counts at each report within the last minute plus a report's maximum delay."""
        self._base: dict[str, int] = {}
        """Maps each pool that uses the picker to its requests without a pick before it began to use it."""
        self._ended = Counter[str]()
        """Maps each pool to the picks made by processes that have ended."""
        self._process = 0
        self._report = PickerReport()
        self._known_since = float("-inf")
        """The time since which the requests and the picks are comparable."""
        self._missed: Mapping[str, int] = {}
        """The result of `counts` at the last report with comparable values."""

    def use_pools(self, pools: Collection[str]) -> None:
        """From now on, count requests for these pools, excluding each pool's earlier requests."""
        requests = self._requests()
        self._base = {pool: self._base.get(pool, requests.get(pool, 0) - self._picked(pool)) for pool in pools}

    def reported(self, process: int, report: PickerReport, *, is_alone: bool = False) -> None:
        """Record the report of the process with this number. `is_alone`: whether it is a separate picker."""
        now, requests = self._clock(), self._requests()
        if process != self._process:
            self._ended.update(self._report.finished)
            self._ended.update(self._report.open_by_pool)
            if is_alone and not self._process:  # a later picker's counts begin at 0
                self._known_since = now + _LATE
                self._history.clear()
        self._process, self._report = process, report
        if now < self._known_since:
            for pool in self._base:
                self._base[pool] = requests.get(pool, 0) - self._picked(pool) - self._missed.get(pool, 0)
        else:
            self._missed = self.counts()
        picked = {pool: self._picked(pool) for pool in self._base}
        self._history.append(_Counted(now, {pool: requests.get(pool, 0) for pool in self._base}, picked))
        while now - self._history[0].at > _MINUTE + _LATE:
            self._history.popleft()

    def recent(self) -> Mapping[str, RecentPicks]:
        """Map each pool that used the picker throughout the last minute to its requests in that minute."""
        if not self._history:
            return {}
        newest, oldest = self._history[-1], self._history[0]
        since = max(newest.at - _MINUTE, self._known_since)
        first = next((item for item in self._history if item.at >= since), None)
        if first is None:
            return {}
        in_flight = self._report.open_by_pool
        found = {}
        for pool, requests in newest.requests.items():
            if pool in first.requests:
                reported, picked = requests - first.requests[pool], newest.picked[pool]
                missed = max(0, reported - (picked - oldest.picked.get(pool, 0)))
                found[pool] = RecentPicks(reported, picked - first.picked[pool], missed, in_flight.get(pool, 0))
        return found

    def counts(self) -> Mapping[str, int]:
        """Map each pool to the requests sent without a pick since the pool began to use the picker."""
        requests = self._requests()
        return {pool: max(0, requests.get(pool, 0) - self._picked(pool) - base) for pool, base in self._base.items()}

    def _picked(self, pool: str) -> int:
        return self._ended[pool] + self._report.finished.get(pool, 0)

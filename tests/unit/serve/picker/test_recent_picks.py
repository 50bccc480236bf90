"""The share of a pool's requests that were picked in the last minute, even if proxies report late."""

from __future__ import annotations

from collections import Counter

from lbctl.picker.reports import PickerReport
from lbctl.serve.picker.fallbacks import Fallbacks, RecentPicks


class _Traffic:
    """Requests and picks of one pool, second by second."""

    def __init__(self, late: int = 0) -> None:
        self.requests, self.now, self.finished = Counter[str](), 0.0, 0
        self._unreported: list[int] = []
        self._late = late
        self.fallbacks = Fallbacks(lambda: self.requests, lambda: self.now)
        self.fallbacks.use_pools(["chat"])
        self.fallbacks.reported(1, PickerReport())

    def run(self, seconds: int, *, picked: int, others: int = 0) -> RecentPicks | None:
        """Return the counts after this number of seconds, with these requests in each second."""
        for _ in range(seconds):
            self.now += 1.0
            self.finished += picked
            self._unreported.append(picked + others)
            if len(self._unreported) > self._late:
                self.requests["chat"] += sum(self._unreported)
                self._unreported.clear()
            report = PickerReport(finished={"chat": self.finished}, open_by_pool={"chat": 3})
            self.fallbacks.reported(1, report)
        return self.fallbacks.recent().get("chat")


def test_nothing_is_missed_where_reports_are_late() -> None:
    traffic = _Traffic(late=8)
    for _ in range(30):
        counts = traffic.run(7, picked=10)
        assert counts is None or counts.missed == 0
    assert traffic.run(40, picked=0) is not None
    after = traffic.run(9, picked=0)
    assert after is not None
    assert after.missed == 0


def test_requests_without_a_pick_are_counted_for_a_minute() -> None:
    traffic = _Traffic()
    assert traffic.run(100, picked=10) == RecentPicks(600, 600, 0, 3)
    assert traffic.run(100, picked=0, others=10) == RecentPicks(600, 0, 600, 3)
    half = traffic.run(100, picked=5, others=5)
    assert half is not None
    assert (half.requests, half.picked) == (600, 300)
    assert half.missed > 200


def test_pool_that_is_picked_since_just_now_is_unknown() -> None:
    traffic = _Traffic()
    traffic.run(5, picked=1)
    traffic.fallbacks.use_pools(["chat", "new"])
    traffic.run(5, picked=1)
    assert traffic.fallbacks.recent().keys() == {"chat"}

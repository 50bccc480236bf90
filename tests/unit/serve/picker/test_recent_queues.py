"""Counts of the queues in the last minute, from reports with counts since the start of the picker."""

from __future__ import annotations

from typing import Any

from lbctl.picker.reports import PickerReport
from lbctl.picker.statistics import QueueStatistics, TenantWaits
from lbctl.serve.picker.recent_queues import RecentQueues


class _Queue:
    """One queue, whose picker reports once a second."""

    def __init__(self) -> None:
        self.now = 0.0
        self.queues = RecentQueues(lambda: self.now)

    def report(self, process: int = 1, released: int = 0, *, seconds: int = 1, **counts: Any) -> QueueStatistics:
        """Report these counts for some seconds, and return the counts of the last minute."""
        total = QueueStatistics({"normal": 7}, **counts)
        for _ in range(released):
            total.released(0.5, "acme")
        for _ in range(seconds):
            self.queues.reported(process, PickerReport(queues={"chat": total}))
            self.now += 1.0
        return self.queues.recent()["chat"]


def test_counts_leave_after_a_minute() -> None:
    queue = _Queue()
    queue.report(released=100, refused_full=50)
    after = queue.report(released=104, refused_full=51, refused_late=2, left=3, seconds=59)
    assert (after.refused_full, after.refused_late, after.left) == (1, 2, 3)
    assert (sum(after.waits.counts), after.waits.total) == (4, 2.0)
    assert after.tenants == {"acme": TenantWaits(4, 2.0)}
    later = queue.report(released=104, refused_full=51, refused_late=2, left=3, seconds=10)
    assert (later.refused_full, later.refused_late, later.left, later.tenants) == (0, 0, 0, {})
    assert later.waiting == {"normal": 7}, "these wait now"


def test_counts_begin_again_with_a_new_picker() -> None:
    queue = _Queue()
    queue.report(released=100, refused_full=50)
    first = queue.report(process=2)
    assert (first.refused_full, sum(first.waits.counts)) == (0, 0)
    after = queue.report(process=2, released=2, refused_full=1)
    assert (after.refused_full, sum(after.waits.counts)) == (1, 2)


def test_counts_of_a_pool_that_was_added_again_are_positive() -> None:
    queue = _Queue()
    queue.report(released=100, refused_full=50, left=5)
    after = queue.report(released=1)
    assert (sum(after.waits.counts), after.refused_full, after.left, after.tenants) == (0, 0, 0, {})

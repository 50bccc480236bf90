"""The API's row about the queue of a pool."""

from __future__ import annotations

from lbctl.api import schema
from lbctl.ir.pools import QueuePolicy
from lbctl.picker.statistics import QueueStatistics
from lbctl.serve.api.queue_rows import queue_row
from lbctl.serve.picker.recent_queues import QueueState


def test_row_has_waiting_requests_and_recent_counts() -> None:
    recent = QueueStatistics({"high": 2, "normal": 10, "low": 0}, refused_full=4, refused_late=1, left=3)
    for tenant, seconds in (("zeta", 0.25), ("acme", 1.0), ("acme", 2.0), ("", 0.75)):
        recent.released(seconds, tenant)
    row = queue_row(QueueState(QueuePolicy(2_500, max_requests=500), recent, {"acme": 3}))
    assert row == schema.PoolQueue(
        max_requests=500, max_wait_seconds=2.5, waiting=12, priorities={"high": 2, "normal": 10, "low": 0},
        tenants={"acme": 3}, released=4, mean_wait_seconds=1.0,
        waits={"acme": schema.QueueWaits(2, 1.5), "zeta": schema.QueueWaits(1, 0.25)},
        refused_full=4, refused_late=1, left=3,
    )  # fmt: skip


def test_mean_wait_is_unknown_without_waits() -> None:
    row = queue_row(QueueState(QueuePolicy(10_000), QueueStatistics(), {}))
    assert (row.waiting, row.released, row.mean_wait_seconds, row.waits) == (0, 0, None, {})

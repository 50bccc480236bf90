"""API rows about the picker's queues."""

from __future__ import annotations

from lbctl.api import schema
from lbctl.picker.statistics import TenantWaits
from lbctl.serve.picker.recent_queues import QueueState


def queue_row(queue: QueueState) -> schema.PoolQueue:
    """Return the row for a pool's queue."""
    recent = queue.recent
    waited = TenantWaits(sum(recent.waits.counts), recent.waits.total)
    return schema.PoolQueue(
        max_requests=queue.policy.max_requests,
        max_wait_seconds=queue.policy.max_wait / 1000,
        waiting=sum(recent.waiting.values()),
        priorities=recent.waiting,
        tenants=queue.tenants,
        released=waited.requests,
        mean_wait_seconds=_mean(waited) if waited.requests else None,
        waits={name: schema.QueueWaits(waits.requests, _mean(waits)) for name, waits in sorted(recent.tenants.items())},
        refused_full=recent.refused_full,
        refused_late=recent.refused_late,
        left=recent.left,
    )


def _mean(waits: TenantWaits) -> float:
    return round(waits.seconds / waits.requests, 3)

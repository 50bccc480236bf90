"""Figures for the picker's queue in a replay: waits and rejections, also by tenant and priority."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lbctl.base.percentiles import percentile_of
from lbctl.pick.waiting import PRIORITIES
from lbctl.simulate.picking import QueueOutcomes
from lbctl.simulate.replay import Replay
from lbctl.simulate.state import DONE

MAX_TENANTS = 20
"""Maximum number of tenants with individual figures. The tenants with the fewest requests are combined as `OTHER`."""
OTHER = "other"


@dataclass(frozen=True, slots=True)
class FlowFigures:
    """The figures for some requests. Times are in seconds.

    Waits are the queueing times of all requests sent to a replica; 0 for requests that did not wait.
    """

    requests: int
    waited: int
    """Number of requests sent to a replica after waiting."""
    wait_p50: float
    """Median of the waits."""
    wait_p99: float
    """99th percentile of the waits."""
    wait_max: float
    """Longest wait."""
    ttft_p99: float
    """99th percentile of the time to first token, for requests with a complete response."""
    rejected: int
    """Number of requests rejected by the queue."""
    left: int
    """Number of requests whose clients left while waiting."""


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """The queue's figures in one replay."""

    total: FlowFigures
    """Figures for all requests."""
    priorities: Mapping[str, FlowFigures]
    """Maps each priority to the figures for its requests, highest first; empty if the load has no priorities."""
    tenants: Mapping[str, FlowFigures]
    """Maps each tenant, and `OTHER`, to the figures for its requests; empty if the load has no tenants."""


def queue_figures(replay: Replay) -> QueueFigures | None:
    """Return the queue's figures; None if the replay's picker has no queue."""
    trace, queue = replay.trace, replay.queue
    if queue is None:
        return None
    every = range(len(trace.times))
    names = [name for name, _ in Counter(trace.tenants).most_common(MAX_TENANTS)]
    shown = set(names)
    tenants = _grouped(names, [name if name in shown else OTHER for name in trace.tenants])
    priorities = _grouped(PRIORITIES, [PRIORITIES[index] for index in trace.priorities])
    return QueueFigures(
        _figures(replay, queue, every),
        {name: _figures(replay, queue, requests) for name, requests in priorities.items()},
        {name: _figures(replay, queue, requests) for name, requests in tenants.items()},
    )


def _grouped(order: Iterable[str], names: Sequence[str]) -> dict[str, list[int]]:
    """Map each name to the requests with this name. Names without requests are left out."""
    groups: dict[str, list[int]] = {name: [] for name in order}
    for request, name in enumerate(names):
        groups.setdefault(name, []).append(request)
    return {name: group for name, group in groups.items() if group}


def _figures(replay: Replay, queue: QueueOutcomes, requests: Sequence[int]) -> FlowFigures:
    columns = replay.requests
    rejected = {request for request in requests if request in queue.rejected}
    left = {request for request in requests if request in queue.left}
    waits = [queue.waits.get(request, 0.0) for request in requests if request not in rejected and request not in left]
    ttft = [
        float(columns.first[request] - columns.arrived[request])
        for request in requests
        if columns.state[request] == DONE
    ]
    return FlowFigures(
        len(requests),
        sum(request in queue.waits for request in requests),
        percentile_of(waits, 50),
        percentile_of(waits, 99),
        max(waits, default=0.0),
        percentile_of(ttft, 99),
        len(rejected),
        len(left),
    )

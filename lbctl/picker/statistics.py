"""The picker's statistics: decisions by pool and reason, their durations, and samples of them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lbctl.pick.waiting import PRIORITIES

BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1)
"""Upper bounds of the histogram buckets, in seconds."""
WAIT_BOUNDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets for the time spent in queues, in seconds."""
MAX_TENANTS = 20
"""Maximum number of tenants per pool whose waits are reported individually. All others are grouped as `OTHER`."""
OTHER = "other"
_SAMPLES = 200
_SAMPLE_INTERVAL = 0.1
"""Minimum time between samples, in seconds."""


@dataclass(frozen=True, slots=True)
class DecisionSample:
    """One decision. The sample does not contain any data sent by a client."""

    at: float
    """Time of the decision, in seconds since the epoch."""
    pool: str
    replica: str | None
    """The picked replica; None if none was picked."""
    reason: str
    """Reason for choosing this replica."""
    seconds: float
    """Duration of the decision in seconds."""
    session: bool
    """Whether the request has a session key."""
    blocks: int
    """Number of prompt blocks looked up."""
    tokens: float
    """Estimated prompt length in tokens."""
    proxy: str
    """The querying proxy; empty if it did not send a name."""


@dataclass(slots=True)
class DurationHistogram:
    """Histogram of durations; the last bucket has no upper bound."""

    bounds: tuple[float, ...] = BOUNDS
    """Upper bounds of the buckets, in seconds."""
    counts: list[int] = field(default_factory=list)
    """Number of durations in each bucket."""
    total: float = 0.0
    """Sum of the durations, in seconds."""

    def __post_init__(self) -> None:
        """Initialize the buckets with zeros."""
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def add(self, seconds: float) -> None:
        """Add a duration."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds


@dataclass(slots=True)
class TenantWaits:
    """Waits of one tenant's requests that were assigned a replica."""

    requests: int = 0
    seconds: float = 0.0
    """Sum of the waits, in seconds."""


@dataclass(slots=True)
class QueueStatistics:
    """A pool's queue counts since the process started."""

    waiting: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(PRIORITIES, 0))
    """Maps each priority to the number of requests currently waiting."""
    refused_full: int = 0
    """Requests rejected because too many were waiting."""
    refused_late: int = 0
    """Requests rejected because they had waited too long."""
    left: int = 0
    """Requests whose clients left while waiting."""
    waits: DurationHistogram = field(default_factory=lambda: DurationHistogram(WAIT_BOUNDS))
    """Waits of the requests that were assigned a replica."""
    tenants: dict[str, TenantWaits] = field(default_factory=dict)
    """Maps each tenant, and `OTHER`, to its waits."""

    def released(self, seconds: float, tenant: str) -> None:
        """Count a request that was assigned a replica after waiting."""
        self.waits.add(seconds)
        if not tenant:
            return
        if tenant not in self.tenants and len(self.tenants) >= MAX_TENANTS:
            tenant = OTHER
        waits = self.tenants.setdefault(tenant, TenantWaits())
        waits.requests += 1
        waits.seconds += seconds


class Statistics:
    """Counts since the process started."""

    def __init__(self) -> None:
        self.reasons: Counter[tuple[str, str]] = Counter()
        """Maps each (pool, reason) pair to the number of decisions. Pools without a table are counted under an empty
        name."""
        self.times: dict[str, DurationHistogram] = {}
        """Maps each pool to the durations of its decisions."""
        self.finished: Counter[str] = Counter()
        """Maps each pool to the number of picked requests that have ended."""
        self.lost: Counter[str] = Counter()
        """Maps each pool to the number of ended requests whose end was never reported."""
        self.queues: dict[str, QueueStatistics] = {}
        """Maps each pool that has a queue to the queue's counts."""
        self.task_failures: Counter[str] = Counter()
        """Maps each task to its number of failures."""
        self.sampled = 0
        """Number of samples since the start."""
        self._samples: deque[DecisionSample] = deque(maxlen=_SAMPLES)
        self._sampled_at = 0.0

    def decided(self, pool: str, reason: str, seconds: float) -> None:
        """Count a decision."""
        self.reasons[pool, reason] += 1
        self.times.setdefault(pool, DurationHistogram()).add(seconds)

    def forget(self, pool: str) -> None:
        """Drop the decision counts for a pool that has left."""
        self.times.pop(pool, None)
        for key in [key for key in self.reasons if key[0] == pool]:
            del self.reasons[key]

    def task_failed(self, task: str) -> None:
        """Count a failure of a task."""
        self.task_failures[task] += 1

    def wants_sample(self, at: float) -> bool:
        """Return whether a decision at this time should be sampled."""
        return at - self._sampled_at >= _SAMPLE_INTERVAL

    def sample(self, sample: DecisionSample) -> None:
        """Add a sample and drop the oldest one if there are too many."""
        self._sampled_at = sample.at
        self.sampled += 1
        self._samples.append(sample)

    def samples_after(self, number: int) -> list[DecisionSample]:
        """Return the samples after the first `number`, as far as they are still available."""
        new = min(max(self.sampled - number, 0), len(self._samples))
        return list(self._samples)[len(self._samples) - new :]


def page(statistics: Statistics, gauges: Mapping[str, float]) -> bytes:
    """Return the counts, and the gauges by name, in the Prometheus text format."""
    return "".join(_lines(statistics, gauges)).encode()


def _lines(statistics: Statistics, gauges: Mapping[str, float]) -> Iterator[str]:
    yield "# HELP lbctl_pick_decisions_total Number of picker decisions.\n# TYPE lbctl_pick_decisions_total counter\n"
    for (pool, reason), count in sorted(statistics.reasons.items()):
        yield f'lbctl_pick_decisions_total{{pool="{_quoted(pool)}",reason="{_quoted(reason)}"}} {count}\n'
    yield "# HELP lbctl_pick_lost_ends_total Number of requests whose end was not reported.\n"
    yield "# TYPE lbctl_pick_lost_ends_total counter\n"
    for pool, count in sorted(statistics.lost.items()):
        yield f'lbctl_pick_lost_ends_total{{pool="{_quoted(pool)}"}} {count}\n'
    yield "# HELP lbctl_task_failures_total Number of failures of the picker's long-lived tasks.\n"
    yield "# TYPE lbctl_task_failures_total counter\n"
    for task, count in sorted(statistics.task_failures.items()):
        yield f'lbctl_task_failures_total{{task="{_quoted(task)}"}} {count}\n'
    yield "# HELP lbctl_pick_seconds Duration of the picker's decisions.\n# TYPE lbctl_pick_seconds histogram\n"
    for pool, histogram in sorted(statistics.times.items()):
        yield from _histogram("lbctl_pick_seconds", _quoted(pool), histogram)
    if statistics.queues:
        yield from _queue_lines(statistics.queues)
    for name, value in gauges.items():
        yield f"# TYPE {name} gauge\n{name} {value:g}\n"


def _queue_lines(queues: Mapping[str, QueueStatistics]) -> Iterator[str]:
    rows = [(_quoted(pool), queue) for pool, queue in sorted(queues.items())]
    yield "# HELP lbctl_queue_waiting Number of requests that wait for a replica.\n# TYPE lbctl_queue_waiting gauge\n"
    for pool, queue in rows:
        for priority, count in queue.waiting.items():
            yield f'lbctl_queue_waiting{{pool="{pool}",priority="{priority}"}} {count}\n'
    yield "# HELP lbctl_queue_refused_total Number of requests that the queue rejected.\n"
    yield "# TYPE lbctl_queue_refused_total counter\n"
    for pool, queue in rows:
        yield f'lbctl_queue_refused_total{{pool="{pool}",reason="full"}} {queue.refused_full}\n'
        yield f'lbctl_queue_refused_total{{pool="{pool}",reason="late"}} {queue.refused_late}\n'
    yield "# HELP lbctl_queue_left_total Number of requests whose clients disconnected while waiting.\n"
    yield "# TYPE lbctl_queue_left_total counter\n"
    for pool, queue in rows:
        yield f'lbctl_queue_left_total{{pool="{pool}"}} {queue.left}\n'
    yield "# HELP lbctl_queue_wait_seconds Time that requests waited for a replica.\n"
    yield "# TYPE lbctl_queue_wait_seconds histogram\n"
    for pool, queue in rows:
        yield from _histogram("lbctl_queue_wait_seconds", pool, queue.waits)
    yield "# HELP lbctl_queue_tenant_requests_total Number of requests that got a replica after a wait.\n"
    yield "# TYPE lbctl_queue_tenant_requests_total counter\n"
    for pool, tenant, waits in _tenants(rows):
        yield f'lbctl_queue_tenant_requests_total{{pool="{pool}",tenant="{tenant}"}} {waits.requests}\n'
    yield "# HELP lbctl_queue_tenant_wait_seconds_total Sum of the waits of these requests.\n"
    yield "# TYPE lbctl_queue_tenant_wait_seconds_total counter\n"
    for pool, tenant, waits in _tenants(rows):
        yield f'lbctl_queue_tenant_wait_seconds_total{{pool="{pool}",tenant="{tenant}"}} {waits.seconds:.6f}\n'


def _tenants(rows: Sequence[tuple[str, QueueStatistics]]) -> Iterator[tuple[str, str, TenantWaits]]:
    for pool, queue in rows:
        for tenant, waits in sorted(queue.tenants.items()):
            yield pool, _quoted(tenant), waits


def _histogram(name: str, pool: str, histogram: DurationHistogram) -> Iterator[str]:
    cumulative = 0
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        cumulative += count
        yield f'{name}_bucket{{pool="{pool}",le="{bound}"}} {cumulative}\n'
    yield f'{name}_sum{{pool="{pool}"}} {histogram.total:.6f}\n'
    yield f'{name}_count{{pool="{pool}"}} {cumulative}\n'


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

"""The metrics of the control plane itself: xDS streams, pushes and acknowledgements, reloads, and the snapshot.

Counters are updated when events happen (the xDS observer calls them); gauges of the snapshot are computed when the
metrics are scraped. Clients cannot choose label values freely: a proxy's name is a label, but a node's ID is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lbctl import __version__
from lbctl.serve.metrics.latency import LatencyMetrics
from lbctl.xds.resource import EDS, SHORT

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ReloadStatus = Literal["published", "unchanged", "invalid", "refused", "unsound", "rolled_back"]
RELOAD_STATUSES: tuple[ReloadStatus, ...] = get_args(ReloadStatus)
KINDS = ("sotw", "delta", "load", "requests")
"""The variants of the xDS protocol, and the streams of load reports and request logs."""
_ACK_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60)
_BUILD_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """Metrics that the xDS streams (through the observer interface) and other parts of the control plane update."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        Gauge("lbctl_info", "The version of lbctl.", ["version"], registry=registry).labels(__version__).set(1)
        self._register_streams(registry)
        self._unmatched = Counter(
            "lbctl_xds_unmatched_nodes",
            "The number of streams from nodes that match no proxy entry.",
            registry=registry,
        )
        self._reloads = Counter(
            "lbctl_reloads", "The number of times that lbctl read the fleet's files.", ["result"], registry=registry
        )
        for result in RELOAD_STATUSES:
            self._reloads.labels(result)
        self._valid = Gauge(
            "lbctl_fleet_valid", "1 if the most recently read files are published, else 0.", registry=registry
        )
        self._warnings = Gauge(
            "lbctl_fleet_warnings", "The number of warnings from the last read of the files.", registry=registry
        )
        self._key_files = Gauge(
            "lbctl_key_files_held", "The number of key files whose earlier content is still in use.",
            registry=registry,
        )  # fmt: skip
        self._build_seconds = Histogram(
            "lbctl_build_seconds", "The time to build and check a snapshot.", buckets=_BUILD_BUCKETS, registry=registry
        )
        self._task_failures = Counter(
            "lbctl_task_failures",
            "The number of failures by task; lbctl restarted the task, or called it again at the next publication.",
            ["task"],
            registry=registry,
        )
        self.latency = LatencyMetrics(registry)
        self._snapshot = _Snapshot(now)
        registry.register(self._snapshot)

    def _register_streams(self, registry: CollectorRegistry) -> None:
        """Register the metrics that have the stream kind or resource type as a label."""
        streams = Gauge("lbctl_xds_streams", "The number of open xDS streams.", ["kind"], registry=registry)
        pushes = Counter("lbctl_xds_pushes", "The number of xDS responses sent.", ["type"], registry=registry)
        resources = Counter(
            "lbctl_xds_pushed_resources", "The number of xDS resources sent.", ["type"], registry=registry
        )
        sent = Counter(
            "lbctl_xds_pushed_bytes", "The number of bytes of xDS responses sent.", ["type"], registry=registry
        )
        acks = Histogram(
            "lbctl_xds_ack_seconds", "The time from an xDS response to its acknowledgement.", ["type"],
            buckets=_ACK_BUCKETS, registry=registry,
        )  # fmt: skip
        nacks = Counter(
            "lbctl_xds_nacks", "The number of xDS responses that a proxy rejected.", ["type"], registry=registry
        )
        types = tuple(SHORT.values())
        self._streams = {kind: streams.labels(kind) for kind in KINDS}
        self._pushes = {kind: pushes.labels(kind) for kind in types}
        self._resources = {kind: resources.labels(kind) for kind in types}
        self._bytes = {kind: sent.labels(kind) for kind in types}
        self._acks = {kind: acks.labels(kind) for kind in types}
        self._nacks = {kind: nacks.labels(kind) for kind in types}

    def connected(self, kind: str) -> None:
        """Count a new stream. `kind`: one of KINDS."""
        self._streams[kind].inc()

    def disconnected(self, kind: str) -> None:
        """Count a stream that has ended. `kind`: one of KINDS."""
        self._streams[kind].dec()

    def pushed(self, short_type: str, resources: int, size: int) -> None:
        """Count a response with its number of `resources`, and its `size` in bytes."""
        self._pushes[short_type].inc()
        self._resources[short_type].inc(resources)
        self._bytes[short_type].inc(size)

    def acked(self, short_type: str, seconds: float) -> None:
        """Count an acknowledgement that came `seconds` after the response."""
        self._acks[short_type].observe(seconds)
        if short_type == SHORT[EDS]:
            self.latency.acked(seconds)

    def nacked(self, short_type: str) -> None:
        """Count a response that a proxy rejected."""
        self._nacks[short_type].inc()

    def unmatched(self, node_id: str) -> None:
        """Count a stream from a node that matches no proxy entry.

        The ID is not a label, because the client chooses it.
        """
        del node_id
        self._unmatched.inc()

    def failed(self) -> None:
        """Count a stream that failed because of an internal error in lbctl."""
        self.task_failed("xDS stream")

    def reloaded(self, result: ReloadStatus, warnings: int = 0, key_files: int = 0) -> None:
        """Record a read of the files.

        `warnings`: the number of its warnings. `key_files`: the number of key files that keep their earlier content.
        """
        self._warnings.set(warnings)
        self._key_files.set(key_files)
        self._reloads.labels(result).inc()
        self._valid.set(result in ("published", "unchanged"))

    def published(self, version: str, seconds: float, replicas: Mapping[str, tuple[int, int]]) -> None:
        """Record the publication of a snapshot, which took `seconds`.

        `replicas` maps each pool to the number of its replicas and the number of its drained replicas.
        """
        self._build_seconds.observe(seconds)
        self._snapshot.set(version, replicas)

    def task_started(self, task: str) -> None:
        """Export the failures of a long-lived task from 0 on, so that the first failure appears as an increase."""
        self._task_failures.labels(task)

    def task_failed(self, task: str) -> None:
        """Count a failure of a long-lived task. `task` is one of a fixed set of names."""
        self._task_failures.labels(task).inc()

    def page(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self.registry)


class _Snapshot(Collector):
    """Gauges of the published snapshot; their labels exist while the snapshot contains them."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._version = ""
        self._since = 0.0
        self._replicas: Mapping[str, tuple[int, int]] = {}

    def set(self, version: str, replicas: Mapping[str, tuple[int, int]]) -> None:
        """Replace the snapshot that the gauges describe."""
        if version != self._version:
            self._since = self._now()
        self._version, self._replicas = version, replicas

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges."""
        ready = GaugeMetricFamily("lbctl_ready", "1 if a complete snapshot is published, else 0.")
        ready.add_metric([], float(bool(self._version)))
        yield ready
        info = GaugeMetricFamily("lbctl_snapshot_info", "The version of the published snapshot.", labels=["version"])
        age = GaugeMetricFamily("lbctl_snapshot_age_seconds", "The time since this version was published.")
        if self._version:
            info.add_metric([self._version], 1)
            age.add_metric([], max(0.0, self._now() - self._since))
        yield info
        yield age
        replicas = GaugeMetricFamily(
            "lbctl_pool_replicas", "The number of replicas in the published snapshot.", labels=["pool"]
        )
        drained = GaugeMetricFamily(
            "lbctl_pool_drained_replicas", "The number of drained replicas in the published snapshot.", labels=["pool"]
        )
        for pool, (count, drained_count) in self._replicas.items():
            replicas.add_metric([pool], count)
            drained.add_metric([pool], drained_count)
        yield replicas
        yield drained

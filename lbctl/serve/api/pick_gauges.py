"""Picker metrics for Prometheus, computed from the picker's reports when they are scraped."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from lbctl.picker.statistics import DurationHistogram
from lbctl.serve.picker.fallbacks import MIN_REQUESTS
from lbctl.serve.picker.manager import PickerManager


class PickGauges(Collector):
    """Collects the metrics. Counts from the picker's reports restart at zero with each picker process.

    The counts of starts, fallbacks and tokens found in caches are kept.
    """

    def __init__(self, picker: PickerManager) -> None:
        self._picker = picker

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families and their current values; nothing if no pool needs a picker."""
        if self._picker.bind is None:
            return
        state = self._picker.state
        up = GaugeMetricFamily("lbctl_picker_up", "1 while the picker is running and sending reports.")
        up.add_metric([], int(self._picker.running))
        starts = CounterMetricFamily("lbctl_picker_starts", "The number of times the picker was started.")
        starts.add_metric([], state.starts)
        open_picks = GaugeMetricFamily("lbctl_pick_open", "The number of picked requests that are still in flight.")
        open_picks.add_metric([], self._picker.report.open)
        yield from (
            up,
            starts,
            open_picks,
            self._decisions(),
            self._lost_ends(),
            self._times(),
            *self._fallbacks(),
            *self._cached_tokens(),
            *self._queues(),
        )

    def _decisions(self) -> Metric:
        decisions = CounterMetricFamily(
            "lbctl_pick_decisions", "The number of picker decisions, by reason.",
            labels=["pool", "reason"],
        )  # fmt: skip
        for pool, reason, count in self._picker.report.reasons:
            decisions.add_metric([pool, reason], count)
        return decisions

    def _lost_ends(self) -> Metric:
        lost = CounterMetricFamily(
            "lbctl_pick_lost_ends",
            "The number of picked requests whose completion was not reported, although they are no longer in any "
            "engine or proxy.",
            labels=["pool"],
        )
        for pool, count in self._picker.report.lost.items():
            lost.add_metric([pool], count)
        return lost

    def _times(self) -> Metric:
        times = HistogramMetricFamily("lbctl_pick_seconds", "The duration of the picker's decisions.", labels=["pool"])
        for pool, histogram in self._picker.report.times.items():
            _add(times, pool, histogram)
        return times

    def _fallbacks(self) -> Iterator[Metric]:
        """Yield the number of requests that proxies sent without a pick: reported requests minus picked requests."""
        fallbacks = GaugeMetricFamily(
            "lbctl_pick_fallbacks",
            "The number of requests that proxies routed with the `otherwise` algorithm, without a pick, since the "
            "pool started using the picker; only for proxies that report their requests.",
            labels=["pool"],
        )
        for pool, count in self._picker.fallbacks.counts().items():
            fallbacks.add_metric([pool], count)
        yield fallbacks
        missed = GaugeMetricFamily(
            "lbctl_pick_missed_ratio",
            "A lower bound for the share of the last minute's requests to a picked pool that were sent without a pick; "
            "only for 20 requests or more, and if no other picker serves the pool.",
            labels=["pool"],
        )
        for pool, row in self._picker.recent().items():
            if row.requests >= MIN_REQUESTS:
                missed.add_metric([pool], row.missed / row.requests)
        yield missed

    def _cached_tokens(self) -> Iterator[Metric]:
        """Yield the number of tokens that the pickers expected to be cached, and the number found by the engines."""
        expected = CounterMetricFamily(
            "lbctl_pick_expected_cached_tokens",
            "The number of prompt tokens that the pickers expected in the caches of a replica's engine.",
            labels=["pool", "replica"],
        )
        found = CounterMetricFamily(
            "lbctl_pick_found_cached_tokens",
            "The number of prompt tokens that a replica's engine found in its caches, by source. Absent if the engine "
            "does not report it.",
            labels=["pool", "replica", "source"],
        )
        for key, use in self._picker.caches.totals().items():
            expected.add_metric([*key], use.expected)
            for source, count in use.by_source.items():
                found.add_metric([*key, source], count)
        yield from (expected, found)
        ratio = GaugeMetricFamily(
            "lbctl_pick_cached_tokens_ratio",
            "The tokens that a replica's engine found in its caches, divided by the tokens that the pickers expected "
            "there, in the last five minutes, or since the comparison began. Absent if the engine does not report "
            "cached tokens.",
            labels=["pool", "replica"],
        )
        for pool, uses in self._picker.recent_cached().items():
            for name, use in uses.items():
                if use.ratio is not None:
                    ratio.add_metric([pool, name], use.ratio)
        yield ratio

    def _queues(self) -> Iterator[Metric]:
        """Yield the metrics for the picker's queues; nothing if no pool has a queue."""
        queues = self._picker.report.queues
        if not queues:
            return
        waiting = GaugeMetricFamily(
            "lbctl_queue_waiting", "The number of requests waiting for a replica.", labels=["pool", "priority"]
        )
        refused = CounterMetricFamily(
            "lbctl_queue_refused",
            "The number of requests that the queue rejected, because too many requests were waiting (full) or because "
            "they had waited too long (late).",
            labels=["pool", "reason"],
        )
        left = CounterMetricFamily(
            "lbctl_queue_left", "The number of requests whose clients disconnected while waiting.", labels=["pool"]
        )
        waits = HistogramMetricFamily(
            "lbctl_queue_wait_seconds", "The time that requests waited for a replica.", labels=["pool"]
        )
        for pool, queue in queues.items():
            for priority, count in queue.waiting.items():
                waiting.add_metric([pool, priority], count)
            refused.add_metric([pool, "full"], queue.refused_full)
            refused.add_metric([pool, "late"], queue.refused_late)
            left.add_metric([pool], queue.left)
            _add(waits, pool, queue.waits)
        yield from (waiting, refused, left, waits, *self._tenants())

    def _tenants(self) -> Iterator[Metric]:
        """Yield the waiting times by tenant. For each pool, the picker reports at most 20 tenants individually."""
        requests = CounterMetricFamily(
            "lbctl_queue_tenant_requests", "The number of a tenant's requests that were assigned a replica after "
            "waiting.",
            labels=["pool", "tenant"],
        )  # fmt: skip
        seconds = CounterMetricFamily(
            "lbctl_queue_tenant_wait_seconds",
            "The total time that a tenant's requests waited for a replica.",
            labels=["pool", "tenant"],
        )
        for pool, queue in self._picker.report.queues.items():
            for tenant, tenant_waits in queue.tenants.items():
                requests.add_metric([pool, tenant], tenant_waits.requests)
                seconds.add_metric([pool, tenant], tenant_waits.seconds)
        yield from (requests, seconds)


def _add(family: HistogramMetricFamily, pool: str, histogram: DurationHistogram) -> None:
    buckets, cumulative = [], 0
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        cumulative += count
        buckets.append((bound, cumulative))
    family.add_metric([pool], buckets, histogram.total)

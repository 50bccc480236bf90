"""Metrics of the picker about cached tokens and queues."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import cast

from prometheus_client import CollectorRegistry, generate_latest

from lbctl.picker.reports import PickerReport
from lbctl.picker.statistics import QueueStatistics
from lbctl.serve.api.pick_gauges import PickGauges
from lbctl.serve.picker.cached_tokens import CacheComparison
from lbctl.serve.picker.manager import PickerManager
from lbctl.signals.cached import CachedTokens

_A, _B, _C = (("chat", name) for name in "abc")


def _cached() -> list[str]:
    """Return the lines about cached tokens. The engines of a and b report them; only a reports sources."""
    comparison = CacheComparison(iter((0.0, 20.0)).__next__)
    comparison.update(1, {}, lambda: {_A: CachedTokens(50, {"device": 50}), _B: CachedTokens(0, {}), _C: None})
    after = {_A: CachedTokens(950, {"device": 650, "disk": 200}), _B: CachedTokens(40, {}), _C: None}
    comparison.update(1, {"chat": {"a": 1000, "c": 70}}, lambda: after)
    return [line for line in _samples(comparison, PickerReport()) if "cached_tokens" in line]


def _samples(comparison: CacheComparison, report: PickerReport) -> list[str]:
    picker = SimpleNamespace(
        bind="127.0.0.1:18001", state=SimpleNamespace(starts=1), running=True, report=report,
        fallbacks=SimpleNamespace(counts=dict), recent=dict, caches=comparison, recent_cached=lambda: comparison.recent,
    )  # fmt: skip
    registry = CollectorRegistry()
    registry.register(PickGauges(cast(PickerManager, picker)))
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_tokens_of_unknown_source_never_fall() -> None:
    comparison = CacheComparison(iter((0.0, 20.0, 40.0)).__next__)
    readings = [CachedTokens(total, {"device": device}) for total, device in ((0, 0), (900, 0), (900, 900))]
    unknown = []
    for counts in readings:
        comparison.update(1, {}, partial(dict[tuple[str, str], CachedTokens | None], {_A: counts}))
        unknown.append(comparison.totals()[_A].by_source["unknown"])
    assert unknown == [0, 900, 900]


def test_cached_tokens_are_counted_by_replica_and_source() -> None:
    assert _cached() == [
        'lbctl_pick_expected_cached_tokens_total{pool="chat",replica="a"} 1000.0',
        'lbctl_pick_expected_cached_tokens_total{pool="chat",replica="b"} 0.0',
        'lbctl_pick_expected_cached_tokens_total{pool="chat",replica="c"} 70.0',
        'lbctl_pick_found_cached_tokens_total{pool="chat",replica="a",source="device"} 600.0',
        'lbctl_pick_found_cached_tokens_total{pool="chat",replica="a",source="disk"} 200.0',
        'lbctl_pick_found_cached_tokens_total{pool="chat",replica="a",source="unknown"} 100.0',
        'lbctl_pick_found_cached_tokens_total{pool="chat",replica="b",source="unknown"} 40.0',
        'lbctl_pick_cached_tokens_ratio{pool="chat",replica="a"} 0.9',
    ]


def test_queue_is_counted_by_priority_reason_and_tenant() -> None:
    queue = QueueStatistics({"high": 1, "normal": 11, "low": 0}, refused_full=4, refused_late=2, left=3)
    for seconds, tenant in ((0.3, "acme"), (0.2, "acme"), (12.0, "")):
        queue.released(seconds, tenant)
    samples = _samples(CacheComparison(), PickerReport(queues={"chat": queue}))
    shown = [line for line in samples if line.startswith("lbctl_queue") and "_created" not in line]
    assert [line for line in shown if "_bucket" not in line] == [
        'lbctl_queue_waiting{pool="chat",priority="high"} 1.0',
        'lbctl_queue_waiting{pool="chat",priority="normal"} 11.0',
        'lbctl_queue_waiting{pool="chat",priority="low"} 0.0',
        'lbctl_queue_refused_total{pool="chat",reason="full"} 4.0',
        'lbctl_queue_refused_total{pool="chat",reason="late"} 2.0',
        'lbctl_queue_left_total{pool="chat"} 3.0',
        'lbctl_queue_wait_seconds_count{pool="chat"} 3.0',
        'lbctl_queue_wait_seconds_sum{pool="chat"} 12.5',
        'lbctl_queue_tenant_requests_total{pool="chat",tenant="acme"} 2.0',
        'lbctl_queue_tenant_wait_seconds_total{pool="chat",tenant="acme"} 0.5',
    ]
    assert 'lbctl_queue_wait_seconds_bucket{le="0.5",pool="chat"} 2.0' in shown
    assert 'lbctl_queue_wait_seconds_bucket{le="+Inf",pool="chat"} 3.0' in shown
    assert not [line for line in _samples(CacheComparison(), PickerReport()) if "queue" in line], "no pool has a queue"

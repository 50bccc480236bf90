"""Metrics that engines report about themselves, for pools with any algorithm."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CollectorRegistry, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from lbctl.ir.address import Address
from lbctl.ir.pools import Pool, Replica
from lbctl.serve.api import signal_gauges
from lbctl.serve.telemetry.reports import ScrapeReport
from lbctl.signals.merge import Signal, Signals


class _Gauges(Collector):
    def __init__(self, pool: Pool, report: ScrapeReport) -> None:
        self._pool, self._report = pool, report

    def collect(self) -> Iterator[Metric]:
        return signal_gauges.collect([self._pool], {("chat", "a"): self._report})


def _page(signals: Signals) -> str:
    pool = Pool("chat", tuple(Replica(name, Address("10.0.0.1", port)) for name, port in (("a", 1), ("b", 2))))
    registry = CollectorRegistry()
    registry.register(_Gauges(pool, ScrapeReport("chat", "a", 9.0, 0, signals, ())))
    return generate_latest(registry).decode()


def test_cache_hits_are_a_metric_without_a_picker() -> None:
    page = _page(Signals({"cache_hits": Signal(0.4, 9.0, 0)}))
    lines = [line for line in page.splitlines() if line.startswith("lbctl_replica_cache_hits_ratio{")]
    assert lines == ['lbctl_replica_cache_hits_ratio{pool="chat",replica="a"} 0.4']


def test_stale_signal_is_absent() -> None:
    page = _page(Signals({}, stale={"cache_hits": Signal(0.4, 1.0, 0)}))
    assert "lbctl_replica_cache_hits_ratio{" not in page

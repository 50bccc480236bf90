"""Gauges for the replicas' own reports, computed when they are scraped. Stale signals are absent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric

from lbctl.ir.pools import Pool
from lbctl.serve.telemetry.reports import ScrapeReport

_FAMILIES = (
    ("queue", "lbctl_replica_queue", "The number of requests waiting for capacity in a replica's engine."),
    (
        "deferred",
        "lbctl_replica_deferred",
        "The number of requests that a replica's engine has deferred for a reason other than capacity.",
    ),
    (
        "preemptions",
        "lbctl_replica_preemptions_per_second",
        "The number of requests per second that a replica's engine preempted between the last two scrapes.",
    ),
    (
        "rejections",
        "lbctl_replica_rejections_per_second",
        "The number of requests per second that a replica's engine rejected between the last two scrapes.",
    ),
    ("kv_cache", "lbctl_replica_kv_cache_ratio", "The utilisation of a replica's key-value cache, from 0 to 1."),
    (
        "cache_hits",
        "lbctl_replica_cache_hits_ratio",
        "The share of prompt tokens that a replica's engine found in its prefix cache at the last scrape, from 0 to 1.",
    ),
    ("temperature", "lbctl_replica_temperature_celsius", "The temperature of a replica's hottest GPU."),
)
"""Signal, metric name and description."""


def collect(pools: Iterable[Pool], reports: Mapping[tuple[str, str], ScrapeReport]) -> Iterator[Metric]:
    """Yield one metric family per signal; `reports` are the newest reports by pool and replica."""
    replicas = [(pool.name, replica.name) for pool in pools for replica in pool.replicas]
    for signal, metric, description in _FAMILIES:
        family = GaugeMetricFamily(metric, description, labels=["pool", "replica"])
        for key in replicas:
            report = reports.get(key)
            value = report.signals.get(signal) if report is not None else None
            if value is not None:
                family.add_metric([*key], value)
        yield family

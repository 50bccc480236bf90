"""Replica and proxy metrics, as in `/api/v1/pools` and `/api/v1/proxies`, computed when they are scraped.

The labels contain a proxy's name in the fleet but not an Envoy's node ID, because clients choose the node ID.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lbctl.api import schema
from lbctl.serve.traffic.ledger import NO_COUNTS, Counts, ReplicaKey
from lbctl.serve.traffic.log_line import DROPPED
from lbctl.serve.traffic.service import Traffic

_REPLICA = ["pool", "replica"]


class TrafficGauges(Collector):
    """Collects the metrics.

    `pools` and `proxies` return the API documents, and `problems` returns the problems shown by `status`.
    """

    def __init__(
        self,
        traffic: Traffic,
        pools: Callable[[], schema.Pools],
        proxies: Callable[[], schema.Proxies],
        problems: Callable[[], tuple[schema.Problem, ...]],
    ) -> None:
        self._traffic = traffic
        self._pools = pools
        self._proxies = proxies
        self._problems = problems
        self._last: dict[tuple[str, ReplicaKey], Counts] = {}
        self._totals: dict[tuple[str, ReplicaKey], Counts] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families and their current values."""
        pools, proxies = self._pools().pools, self._proxies().proxies
        yield from self._replicas(pools)
        yield from self._requests(pools, proxies)
        yield self._proxy_states(proxies)
        yield self._problem_counts()
        yield self._dropped()

    def _replicas(self, pools: tuple[schema.Pool, ...]) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            "lbctl_replica_state", "1 for the state of a replica; the other states are absent.",
            labels=[*_REPLICA, "state"],
        )  # fmt: skip
        share = GaugeMetricFamily(
            "lbctl_replica_share",
            "A replica's share of its pool's requests, from 0 to 1: declared by the files, decided by lbctl, "
            "acknowledged by the proxies, or observed in their counters; absent if unknown.",
            labels=[*_REPLICA, "stage"],
        )
        for pool in pools:
            for row in pool.replicas:
                state.add_metric([pool.name, row.name, row.state], 1)
                for stage, value in (
                    ("declared", row.declared), ("decided", row.share),
                    ("acknowledged", row.acknowledged), ("observed", row.observed),
                ):  # fmt: skip
                    if value is not None:
                        share.add_metric([pool.name, row.name, stage], value)
        yield from (state, share)

    def _requests(self, pools: tuple[schema.Pool, ...], proxies: tuple[schema.Proxy, ...]) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "lbctl_replica_requests", "The number of finished requests from a proxy to a replica.",
            labels=[*_REPLICA, "proxy"],
        )  # fmt: skip
        errors = CounterMetricFamily(
            "lbctl_replica_errors",
            "The number of failed requests from a proxy to a replica, that is, requests with a status of 500 or above "
            "or an incomplete response.",
            labels=[*_REPLICA, "proxy"],
        )
        self._update(pools, proxies)
        for (proxy, key), counts in sorted(self._totals.items()):
            requests.add_metric([*key, proxy], counts.requests)
            errors.add_metric([*key, proxy], counts.errors)
        yield from (requests, errors)

    def _update(self, pools: tuple[schema.Pool, ...], proxies: tuple[schema.Proxy, ...]) -> None:
        """Add each proxy's counts since the last scrape. A disconnected Envoy's counts are kept."""
        names = {row.node: row.proxy for row in proxies if row.proxy is not None and row.kind != "reader"}
        totals = self._traffic.ledger.totals()
        for (node, key), counts in totals.items():
            before = self._last.get((node, key), NO_COUNTS)
            new = counts if counts.requests < before.requests else counts - before
            place = names.get(node), key
            if place[0] is not None:
                self._totals[place[0], key] = self._totals.get((place[0], key), NO_COUNTS) + new
        self._last = totals
        replicas = {ReplicaKey(pool.name, row.name) for pool in pools for row in pool.replicas}
        self._totals = {
            (proxy, key): counts
            for (proxy, key), counts in self._totals.items()
            if key in replicas and proxy in self._traffic.proxies
        }

    def _proxy_states(self, proxies: tuple[schema.Proxy, ...]) -> Metric:
        states = GaugeMetricFamily(
            "lbctl_proxy_state",
            "The number of running proxies of a fleet entry in each state; a proxy that has never connected counts as "
            "GONE.",
            labels=["proxy", "kind", "state"],
        )
        counts = Counter((row.proxy, row.state) for row in proxies if row.proxy is not None and row.kind != "reader")
        for name, proxy in sorted(self._traffic.proxies.items()):
            of_proxy = {state: count for (each, state), count in counts.items() if each == name} or {"GONE": 1}
            for state, count in sorted(of_proxy.items()):
                states.add_metric([name, proxy.kind, state], count)
        return states

    def _problem_counts(self) -> Metric:
        family = GaugeMetricFamily(
            "lbctl_problems", "The number of problems that `lbctl status` shows.", labels=["severity", "kind"]
        )
        for (severity, kind), count in sorted(Counter((row.severity, row.kind) for row in self._problems()).items()):
            family.add_metric([severity, kind], count)
        return family

    def _dropped(self) -> Metric:
        dropped = CounterMetricFamily(
            "lbctl_traffic_log_dropped",
            "The number of ignored traffic log lines, which were malformed or referred to a proxy or replica that is "
            "not in the fleet.",
            labels=["reason"],
        )
        for reason in DROPPED:
            dropped.add_metric([reason], self._traffic.log.dropped[reason])
        return dropped

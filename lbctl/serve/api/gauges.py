"""Telemetry and weight gauges for Prometheus and autoscalers, computed when they are scraped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lbctl.control.analysis.evidence import VERDICTS
from lbctl.control.loop_output import controlled
from lbctl.control.rollouts import PHASES
from lbctl.ir.pools import Pool
from lbctl.ir.snapshot import weights_of
from lbctl.serve.api import decision_rows, signal_gauges
from lbctl.serve.fleet.live import LiveFleet
from lbctl.serve.telemetry.control_loop import ControlLoop
from lbctl.serve.telemetry.scraping import FleetScraper

_MODES = ("acting", "frozen", "blind", "held")


class Gauges(Collector):
    """Collects the gauges. `clock`: the scraper's clock, in seconds."""

    def __init__(self, live: LiveFleet, loop: ControlLoop, scraping: FleetScraper, clock: Callable[[], float]) -> None:
        self._live = live
        self._loop = loop
        self._scraping = scraping
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families and their current values."""
        served = self._live.served
        pools = controlled(served.composed.whole.topology) if served else ()
        yield from self._weights()
        yield from self._pools(pools)
        yield from signal_gauges.collect(pools, self._loop.reports)
        yield self._ages(pools)
        yield from self._sources(pools)
        yield from self._rollouts()

    def _weights(self) -> Iterator[Metric]:
        weight = GaugeMetricFamily(
            "lbctl_replica_weight",
            "A replica's published weight, on the same scale as capacities.",
            labels=["pool", "replica"],
        )
        out = GaugeMetricFamily(
            "lbctl_replica_out", "1 if deep health has ejected the replica.", labels=["pool", "replica", "reason"]
        )
        served = self._live.served
        if served is not None:
            composed = served.composed
            for pool in composed.whole.topology.pools:
                for item, value in zip(pool.replicas, weights_of(pool, composed.whole), strict=True):
                    weight.add_metric([pool.name, item.name], value.rate)
            for name, ejected in composed.ejected.items():
                for replica, reasons in ejected.items():
                    out.add_metric([name, replica, reasons[0] if reasons else ""], 1)
        yield weight
        yield out

    def _rollouts(self) -> Iterator[Metric]:
        share = GaugeMetricFamily(
            "lbctl_rollout_share", "The share of requests that a rollout sends to its target pool, from 0 to 1.",
            labels=["route"],
        )  # fmt: skip
        phase = GaugeMetricFamily(
            "lbctl_rollout_phase", "1 for the rollout's current phase, 0 for the others.", labels=["route", "phase"]
        )
        verdicts = CounterMetricFamily(
            "lbctl_rollout_verdict", "The number of a rollout's evaluations with this verdict.",
            labels=["route", "verdict"],
        )  # fmt: skip
        for state in self._live.inputs.rollouts:
            for verdict in VERDICTS:
                verdicts.add_metric([state.route, verdict], getattr(state.analysis, verdict))
            if state.moves:
                share.add_metric([state.route], state.percent / 100)
            for name in PHASES:
                phase.add_metric([state.route, name], float(name == state.phase))
        yield share
        yield phase
        yield verdicts

    def _pools(self, pools: tuple[Pool, ...]) -> Iterator[Metric]:
        utilisation = GaugeMetricFamily(
            "lbctl_pool_utilisation",
            "The capacity-weighted mean utilisation of the pool's replicas, from 0 to 1.",
            labels=["pool"],
        )
        queue = GaugeMetricFamily(
            "lbctl_pool_queue", "The number of requests waiting for capacity in the pool's engines.", labels=["pool"]
        )
        mode = GaugeMetricFamily(
            "lbctl_pool_mode",
            "1 for the current mode of the pool's weights, 0 for the other modes.",
            labels=["pool", "mode"],
        )
        reports = self._loop.reports
        for pool in pools:
            for family, value in (
                (utilisation, decision_rows.utilisation(pool, reports)),
                (queue, decision_rows.queue(pool, reports)),
            ):
                if value is not None:
                    family.add_metric([pool.name], value)
            state = self._loop.state.pools.get(pool.name)
            for name in _MODES if state else ():
                mode.add_metric([pool.name, name], float(state is not None and state.mode == name))
        yield from (utilisation, queue, mode)

    def _ages(self, pools: tuple[Pool, ...]) -> Metric:
        """Return the age of each replica's newest sample; replicas without samples are absent."""
        ages = GaugeMetricFamily(
            "lbctl_sample_age_seconds", "The age of a replica's newest sample.", labels=["pool", "replica"]
        )
        now = self._clock()
        for pool in pools:
            for item in pool.replicas:
                states = self._scraping.source_states(pool.name, item.name)
                source_ages = [age for state in states if (age := state.age(now)) is not None]
                if source_ages:
                    ages.add_metric([pool.name, item.name], min(source_ages))
        return ages

    def _sources(self, pools: tuple[Pool, ...]) -> Iterator[Metric]:
        failing = GaugeMetricFamily(
            "lbctl_sources_failing",
            "The number of sources whose last scrape failed, by reason.",
            labels=["pool", "kind", "reason"],
        )
        watched = GaugeMetricFamily("lbctl_sources", "The number of scraped sources.", labels=["pool", "kind"])
        for pool in pools:
            counts: dict[tuple[str, str], int] = {}
            kinds: Counter[str] = Counter()
            for item in pool.replicas:
                for state in self._scraping.source_states(pool.name, item.name):
                    kinds[state.kind] += 1
                    if state.reason:
                        counts[state.kind, state.reason] = counts.get((state.kind, state.reason), 0) + 1
            for (kind, reason), count in sorted(counts.items()):
                failing.add_metric([pool.name, kind, reason], count)
            for kind, count in sorted(kinds.items()):
                watched.add_metric([pool.name, kind], count)
        yield from (watched, failing)

"""Metrics about a control plane member, computed when they are scraped."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lbctl.serve.ha.member import FleetMember


class MemberGauges(Collector):
    """Collects this member's metrics."""

    def __init__(self, member: FleetMember) -> None:
        self._member = member

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families and their current values."""
        member, election = self._member, self._member.election
        yield _gauge(
            "leader", "1 if this member is the leader, otherwise 0.", float(member.leads and election.role == "leader")
        )
        yield _gauge("epoch", "The epoch in which this member is the leader or a follower.", float(member.epoch))
        yield _gauge("store_up", "1 if the store is reachable, otherwise 0.", float(not election.problem))
        yield _gauge("refused", "The number of rejected records and heartbeats.", float(len(member.store.refused)))
        yield _gauge("members", "The number of members with a valid heartbeat.", float(len(member.members)))
        yield _gauge(
            "clock_offset_seconds",
            "Number of seconds by which the leader's clock is ahead of this member's clock.",
            member.clock.offset,
        )
        yield _gauge("owned_pools", "The number of pools scraped by this member.", float(len(member.sharing.own())))
        if member.lag is not None:
            yield _gauge("lag_seconds", "Seconds since the leader's last heartbeat was received.", member.lag)
        if election.latency is not None:
            yield _gauge(
                "store_latency_seconds",
                "The store's response time for the most recent request, in seconds.",
                election.latency,
            )
        takeovers = CounterMetricFamily("lbctl_ha_takeovers", "The number of times this member became the leader.")
        takeovers.add_metric([], member.takeovers)
        yield takeovers
        samples = CounterMetricFamily(
            "lbctl_ha_samples_taken", "The number of other members' samples that this member used for decisions."
        )
        samples.add_metric([], member.sharing.taken)
        yield samples


def _gauge(name: str, documentation: str, value: float) -> Metric:
    family = GaugeMetricFamily(f"lbctl_ha_{name}", documentation)
    family.add_metric([], value)
    return family

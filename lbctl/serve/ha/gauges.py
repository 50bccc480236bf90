"""The metrics of a member of a control plane, computed when they are scraped."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lbctl.serve.ha.member import FleetMember


class MemberGauges(Collector):
    """Collects what is known about this member."""

    def __init__(self, member: FleetMember) -> None:
        self._member = member

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families, with the values of this moment."""
        member, election = self._member, self._member.election
        yield _gauge("leader", "1 while this member leads, else 0.", float(member.leads and election.role == "leader"))
        yield _gauge("epoch", "The epoch that this member leads or follows.", float(member.epoch))
        yield _gauge("store_up", "1 while the store answers, else 0.", float(not election.problem))
        yield _gauge(
            "refused", "The number of records and announcements that are refused.", float(len(member.store.refused))
        )
        yield _gauge("members", "The number of members that have announced themselves.", float(len(member.members)))
        yield _gauge(
            "clock_offset_seconds", "Seconds that the leader's clock is ahead of this one.", member.clock.offset
        )
        yield _gauge("owned_pools", "The number of pools that this member scrapes.", float(len(member.sharing.own())))
        if member.lag is not None:
            yield _gauge("lag_seconds", "Seconds since the leader's last sign of life was seen.", member.lag)
        if election.latency is not None:
            yield _gauge("store_latency_seconds", "Seconds of the store's last answer.", election.latency)
        takeovers = CounterMetricFamily("lbctl_ha_takeovers", "How often this member has become the leader.")
        takeovers.add_metric([], member.takeovers)
        yield takeovers
        samples = CounterMetricFamily("lbctl_ha_samples_taken", "Samples of other members that were decided on here.")
        samples.add_metric([], member.sharing.taken)
        yield samples


def _gauge(name: str, documentation: str, value: float) -> Metric:
    family = GaugeMetricFamily(f"lbctl_ha_{name}", documentation)
    family.add_metric([], value)
    return family

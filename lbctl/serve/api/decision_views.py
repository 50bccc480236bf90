"""The documents about the control loop: what it reads, what it decides, and what of that is published."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from lbctl.api import schema
from lbctl.control.loop_output import controlled
from lbctl.control.overrides import Overrides
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import xds_proxies
from lbctl.serve.api import decision_rows
from lbctl.serve.api.pool_views import PoolViews
from lbctl.serve.drivers.eligibility import driven
from lbctl.targets import xds_kinds


class DecisionViews(PoolViews):
    """Builds the documents about the control loop."""

    def signals(self) -> schema.Signals:
        """Return `/api/v1/signals`."""
        states, now = self._parts.telemetry.source_states, time.monotonic()
        return schema.Signals(
            tuple(
                row
                for pool in controlled(self._topology())
                for row in decision_rows.signals(
                    pool,
                    self._parts.telemetry.loop.reports,
                    {item.name: states(pool.name, item.name) for item in pool.replicas},
                    now,
                )
            )
        )

    def decisions(self) -> schema.Decisions:
        """Return `/api/v1/decisions`."""
        served = self._parts.live.served
        if served is None:
            return schema.Decisions(())
        rows = self.proxies().proxies
        acknowledged = decision_rows.acknowledged(rows, served.cached_snapshot.version)
        shares = {pool.name: {item.name: item.share for item in pool.replicas} for pool in self.newest_pools()}
        topology, own = served.composed.whole.topology, self._parts.supervisor.composed()
        ramps = self._parts.picker.feed.ramps()
        proxies = (*xds_proxies(topology, xds_kinds()).all, *driven(topology))
        return schema.Decisions(
            tuple(
                row
                for pool in controlled(topology)
                for row in self._decisions(
                    decision_rows.published_weights(
                        pool, served.composed, proxies, own, shares.get(pool.name, {}), ramps.get(pool.name, {})
                    ),
                    pool,
                    served.composed.overrides,
                    acknowledged,
                )
            )
        )

    def _decisions(
        self,
        published: Mapping[str, decision_rows.PublishedWeight],
        pool: Pool,
        overrides: Overrides,
        acknowledged: schema.Acknowledged,
    ) -> Iterator[schema.Decision]:
        now, reports = time.monotonic(), self._parts.telemetry.loop.reports
        for item in self._parts.telemetry.loop.decisions(pool.name):
            if item.replica in published:
                report = reports.get((pool.name, item.replica))
                by = report.member if report else ""
                yield decision_rows.decision(item, published[item.replica], overrides, acknowledged, now, by)

    def _control(self) -> tuple[schema.PoolControl, ...]:
        """Return the mode of every pool with telemetry, and which replicas are ejected or kept at the floor."""
        served = self._parts.live.served
        ejected = served.composed.ejected if served else {}
        return tuple(
            schema.PoolControl(
                pool=name,
                strategy=item.pool.weighting.strategy,
                mode=item.mode,
                reason=item.mode_reason or None,
                out={replica: tuple(reasons) for replica, reasons in ejected.get(name, {}).items()},
                floor={
                    each.replica.name: tuple(each.health.reasons)
                    for each in item.replicas
                    if each.health.verdict == "floor"
                },
            )
            for name, item in self._parts.telemetry.loop.state.pools.items()
        )

    def _sources(self) -> schema.SourceCounts:
        """Count the sources of all replicas with telemetry, and those whose last scrape failed."""
        states = self._parts.telemetry.source_states
        return decision_rows.sources(
            (pool.name, state)
            for pool in controlled(self._topology())
            for item in pool.replicas
            for state in states(pool.name, item.name)
        )

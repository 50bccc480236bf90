"""Documents about the control loop: its signals, its decisions and the published weights."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from lbctl.api import schema
from lbctl.control.loop_output import controlled
from lbctl.control.overrides import Overrides
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import xds_proxies
from lbctl.serve.api import decision_rows
from lbctl.serve.api.handlers import operation
from lbctl.serve.api.served_state import ServedState
from lbctl.serve.api.status_rows import proxy_rows, topology
from lbctl.serve.drivers.eligibility import driven
from lbctl.targets import xds_kinds


@operation
def signals(state: ServedState) -> schema.Signals:
    """Return `/api/v1/signals`."""
    states, now = state.scraping.source_states, time.monotonic()
    return schema.Signals(
        tuple(
            row
            for pool in controlled(topology(state.live))
            for row in decision_rows.signals(
                pool,
                state.loop.reports,
                {item.name: states(pool.name, item.name) for item in pool.replicas},
                now,
            )
        )
    )


@operation
def decisions(state: ServedState) -> schema.Decisions:
    """Return `/api/v1/decisions`."""
    served = state.live.served
    if served is None:
        return schema.Decisions(())
    rows = proxy_rows(state.nodes, state.supervisor)
    acknowledged = decision_rows.acknowledged(rows, served.cached_snapshot.version)
    shares = {pool.name: {item.name: item.share for item in pool.replicas} for pool in state.replicas.newest()}
    whole, own = served.composed.whole.topology, state.supervisor.composed()
    ramps = state.picker.feed.ramps()
    proxies = (*xds_proxies(whole, xds_kinds()).all, *driven(whole))
    return schema.Decisions(
        tuple(
            row
            for pool in controlled(whole)
            for row in _decisions(
                state,
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
    state: ServedState,
    published: Mapping[str, decision_rows.PublishedWeight],
    pool: Pool,
    overrides: Overrides,
    acknowledged: schema.Acknowledged,
) -> Iterator[schema.Decision]:
    now, reports = time.monotonic(), state.loop.reports
    for item in state.loop.decisions(pool.name):
        if item.replica in published:
            report = reports.get((pool.name, item.replica))
            by = report.member if report else ""
            yield decision_rows.decision(item, published[item.replica], overrides, acknowledged, now, by)


def control(state: ServedState) -> tuple[schema.PoolControl, ...]:
    """Return the mode of every pool with telemetry, and the replicas that are ejected or held at the floor weight."""
    served = state.live.served
    ejected = served.composed.ejected if served else {}
    return tuple(
        schema.PoolControl(
            pool=name,
            strategy=item.pool.weighting.strategy,
            mode=item.mode,
            reason=item.mode_reason or None,
            out={replica: tuple(reasons) for replica, reasons in ejected.get(name, {}).items()},
            floor={
                each.replica.name: each.health.verdict_reasons
                for each in item.replicas
                if each.health.verdict == "floor"
            },
        )
        for name, item in state.loop.state.pools.items()
    )


def source_counts(state: ServedState) -> schema.SourceCounts:
    """Count the metrics sources of all replicas with telemetry, and those whose last scrape failed."""
    states = state.scraping.source_states
    return decision_rows.sources(
        (pool.name, source)
        for pool in controlled(topology(state.live))
        for item in pool.replicas
        for source in states(pool.name, item.name)
    )

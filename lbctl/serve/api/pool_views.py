"""The documents about pools and their replicas, for the API and for the dashboard."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping

from lbctl.serve.api import pool_rows, schema
from lbctl.serve.api.carriers import carriers
from lbctl.serve.api.dashboard import rows
from lbctl.serve.api.replica_states import StateTimes
from lbctl.serve.api.view_parts import PartialViews, ViewParts
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.turns import in_turns

_POOLS_KEPT = 0.5
"""Seconds for which the rows of the pools are shown again while the fleet is the same: many clients ask for them."""
_STATES_INTERVAL = 2.0
_STATES_PAUSE = 100.0
"""The pause between two looks at the states, as a multiple of what a look takes."""


class PoolViews(PartialViews):
    """Builds the documents about pools."""

    def __init__(self, parts: ViewParts) -> None:
        super().__init__(parts)
        self._state_times = StateTimes()
        self._pools: tuple[PublishedFleet | None, float, schema.Pools] = (None, 0.0, schema.Pools(()))

    def pools(self) -> schema.Pools:
        """Return `/api/v1/pools`."""
        served = self._parts.publisher.served
        if served is None:
            return schema.Pools(())
        fleet, since, pools = self._pools
        if fleet is not served or time.monotonic() - since > _POOLS_KEPT:
            pools = schema.Pools(tuple(pool_rows.pools(served.composed, self._live(served))))
            self._pools = served, time.monotonic(), pools
        return pools

    def unavailable(self, pools: Collection[str]) -> Mapping[str, str]:
        """Return why each of these pools has no available replica; the reason is empty where it has one."""
        served = self._parts.publisher.served
        return pool_rows.unavailable(served.composed, self._live(served), pools) if served is not None else {}

    async def follow_states(self) -> None:
        """Look at the states of the replicas now and then, so that each has the time since when it is in its state."""
        while True:
            _, worked = await in_turns(self._look_at_states())
            await asyncio.sleep(max(_STATES_INTERVAL, _STATES_PAUSE * worked))

    def _look_at_states(self) -> Generator[object, None, None]:
        served = self._parts.publisher.served
        if served is not None:
            yield from pool_rows.pools_in_parts(served.composed, self._live(served))

    def live(self) -> Iterator[tuple[schema.LivePool, Iterable[schema.LiveReplica]] | None]:
        """Yield each pool with its replicas, as the dashboard shows them, and None where others may work meanwhile."""
        served = self._parts.publisher.served
        if served is not None:
            for pool in pool_rows.pools_in_parts(served.composed, self._live(served)):
                yield None if pool is None else (rows.pool(pool), self._live_replicas(pool))

    def _live_replicas(self, pool: schema.Pool) -> Iterator[schema.LiveReplica]:
        reports = self._parts.telemetry.loop.reports
        for item in pool.replicas:
            report = reports.get((pool.name, item.name))
            yield rows.replica(pool.name, item, report.signals.values if report else {})

    @property
    def history_seconds(self) -> float:
        """How far back the dashboard's charts go."""
        return self._topology().control.dashboard_history / 1000

    def _live(self, served: PublishedFleet) -> pool_rows.LiveState:
        states = self._parts.telemetry.loop.state.pools.values()
        return pool_rows.LiveState(
            tuple(carriers(served, self.proxies().proxies, self._parts.supervisor, self._parts.recent)),
            self._parts.traffic.ledger,
            self._parts.nodes.reports_refused(),
            checks=self._parts.supervisor.checks,
            health={(state.pool.name, item.replica.name): item.health for state in states for item in state.replicas},
            picker_ramps=self._parts.picker.feed.ramps(),
            times=self._state_times,
            now=self._parts.traffic.clock(),
            at=time.time(),
        )

"""The replicas' states: their rows for the API and the dashboard, and when each state began, if known."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass

from lbctl.api import schema
from lbctl.runtime.yielding import in_turns
from lbctl.serve.api import pool_rows
from lbctl.serve.api.dashboard import rows
from lbctl.serve.api.fleet_proxies import fleet_proxies
from lbctl.serve.api.replica_times import DrainTimes, StateTimes
from lbctl.serve.api.state_changes import StateChanges
from lbctl.serve.api.status_rows import proxy_rows, topology
from lbctl.serve.drivers.supervisor import DriverSupervisor
from lbctl.serve.fleet.live import LiveFleet
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.fleet.recent import RecentSnapshots
from lbctl.serve.picker.manager import PickerManager
from lbctl.serve.telemetry.control_loop import ControlLoop
from lbctl.serve.telemetry.saving import DecisionSaver
from lbctl.serve.traffic.replica_checks import ReplicaChecks
from lbctl.serve.traffic.service import Traffic
from lbctl.xds.protocol.node_status import NodeStatus

_POOLS_KEPT = 0.5
"""Seconds for which the pools' rows are cached while the fleet is unchanged, because many clients request them."""
_LARGE = 500
"""Number of replicas above which a fleet is considered large."""
_STATES_INTERVAL = 1.0
"""Interval between state checks in a small fleet, in seconds."""
_STATES_PAUSE = 100.0
"""Pause between two state checks, as a multiple of a check's duration."""
_MAX_PAUSE = 15.0
"""Maximum time between two checks, in seconds."""


@dataclass(frozen=True, slots=True)
class ReplicaSources:
    """The parts of the process that determine the replicas' states."""

    live: LiveFleet
    """Provides the published fleet."""
    loop: ControlLoop
    """Provides the signals and the decisions."""
    saving: DecisionSaver
    """Records state changes."""
    supervisor: DriverSupervisor
    """Provides the state of driven proxies."""
    nodes: NodeStatus
    """Versions that Envoys have acknowledged and rejected."""
    traffic: Traffic
    """Provides the traffic ledger."""
    replica_checks: ReplicaChecks
    """Provides the results of lbctl's own replica checks."""
    recent: RecentSnapshots
    """Snapshots that proxies are still running."""
    picker: PickerManager
    """Provides the picker's state and its feed."""
    is_alone: bool
    """Whether this process is the only member."""


class ReplicaStates:
    """Builds the pools' rows and monitors the replicas' states."""

    def __init__(self, parts: ReplicaSources) -> None:
        self._parts = parts
        self._state_times = StateTimes()
        self._drain_times = DrainTimes()
        self._state_changes = StateChanges(parts.saving.note_state)
        self._unreached: frozenset[tuple[str, str]] = frozenset()
        """The (pool, replica) keys to which lbctl could not connect at the last check."""
        self._looked_at: tuple[schema.Pool, ...] = ()
        """The pools at the last check of all states; empty before the fleet's first check."""
        self._pools: tuple[PublishedFleet | None, float, schema.Pools] = (None, 0.0, schema.Pools(()))

    def pools(self) -> schema.Pools:
        """Return `/api/v1/pools`."""
        served = self._parts.live.served
        if served is None:
            return schema.Pools(())
        fleet, since, pools = self._pools
        if fleet is not served or time.monotonic() - since > _POOLS_KEPT:
            pools = schema.Pools(tuple(pool_rows.pools(served.composed, self._live(served))))
            self._pools = served, time.monotonic(), pools
        return pools

    def unavailable(self, pools: Collection[str]) -> Mapping[str, str]:
        """Return the reason why each of these pools has no available replica; a reason is empty if the pool has one."""
        served = self._parts.live.served
        return pool_rows.unavailable(served.composed, self._live(served), pools) if served is not None else {}

    def unchecked(self, pools: Collection[str]) -> frozenset[str]:
        """Return the pools whose state is unknown because they have not been checked yet."""
        served = self._parts.live.served
        return pool_rows.unchecked(served.composed, self._live(served), pools) if served is not None else frozenset()

    def newest(self) -> tuple[schema.Pool, ...]:
        """Return the pools.

        In a large fleet, the rows may be a few seconds old, because computing them takes a long time.
        """
        return self._looked_at if self._is_large() else self.pools().pools

    def unseen(self) -> str:
        """Return the reason why the replicas' states are not known yet; empty if they are known."""
        return "the states of the replicas are not known yet" if self._is_large() and not self._looked_at else ""

    def _is_large(self) -> bool:
        return sum(len(pool.replicas) for pool in topology(self._parts.live).pools) > _LARGE

    async def watch(self) -> None:
        """Check the replicas' states periodically, to record when each replica entered its state.

        Also report replicas that go down or recover.
        """
        while True:
            found: list[schema.Pool] = []
            _, worked = await in_turns(self._look_at_states(found))
            self._looked_at = tuple(found)
            self._state_changes.note(found, time.monotonic())
            self._watch_connections()
            await asyncio.sleep(min(_MAX_PAUSE, max(_STATES_INTERVAL, _STATES_PAUSE * worked)))

    def _watch_connections(self) -> None:
        """Query the proxies more often when a replica has become reachable or unreachable.

        In a large fleet, this is skipped, because reading the proxies' pages takes too long.
        """
        if self._is_large():
            return
        unreached = frozenset(key for key, item in self._parts.replica_checks.connections.items() if item.out)
        if unreached != self._unreached:
            self._parts.traffic.pace.hasten()
        self._unreached = unreached

    def _look_at_states(self, found: list[schema.Pool]) -> Generator[object, None, None]:
        """Add every pool to `found`; the yielded values are meaningless."""
        served = self._parts.live.served
        for pool in pool_rows.pools_in_parts(served.composed, self._live(served)) if served is not None else ():
            if pool is not None:
                found.append(pool)
            yield None

    def live(self) -> Iterator[tuple[schema.LivePool, Iterable[schema.LiveReplica]] | None]:
        """Yield each pool with its replicas for the dashboard, and None at points where other tasks may run."""
        served = self._parts.live.served
        if served is not None:
            for pool in pool_rows.pools_in_parts(served.composed, self._live(served)):
                yield None if pool is None else (rows.pool(pool), self._live_replicas(pool))

    def _live_replicas(self, pool: schema.Pool) -> Iterator[schema.LiveReplica]:
        reports = self._parts.loop.reports
        for item in pool.replicas:
            report = reports.get((pool.name, item.name))
            yield rows.replica(pool.name, item, report.signals.values if report else {})

    def _live(self, served: PublishedFleet) -> pool_rows.LiveState:
        states = self._parts.loop.state.pools.values()
        proxies = proxy_rows(self._parts.nodes, self._parts.supervisor)
        return pool_rows.LiveState(
            tuple(fleet_proxies(served, proxies, self._parts.supervisor, self._parts.recent)),
            self._parts.traffic.ledger,
            self._parts.nodes.reports_refused(),
            checks=self._parts.supervisor.checks,
            observed_checks=self._parts.replica_checks.checks,
            connections=self._parts.replica_checks.connections,
            health={(state.pool.name, item.replica.name): item.health for state in states for item in state.replicas},
            picks=self._parts.picker.recent() if self._parts.is_alone else {},
            cached=self._parts.picker.recent_cached(),
            queues=self._parts.picker.recent_queues(),
            picker_ramps=self._parts.picker.feed.ramps(),
            times=self._state_times,
            drains=self._drain_times,
            now=self._parts.traffic.clock(),
            at=time.time(),
        )

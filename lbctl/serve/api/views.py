"""The documents of the API, built from what the other parts know when they are asked for."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from lbctl import __version__
from lbctl.base.diagnostics import dotted
from lbctl.control.loop_output import controlled
from lbctl.control.overrides import Overrides
from lbctl.control.rollouts import follow
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import xds_proxies
from lbctl.ir.settings import of_fleet
from lbctl.ir.topology import Topology
from lbctl.serve.api import (
    decision_rows,
    history_rows,
    member_rows,
    pick_rows,
    pool_rows,
    rollout_rows,
    schema,
    status_rows,
)
from lbctl.serve.api.carriers import carriers
from lbctl.serve.api.dashboard import rows
from lbctl.serve.api.dashboard.service import Dashboard
from lbctl.serve.api.endpoints import Endpoints
from lbctl.serve.api.events import EventLog
from lbctl.serve.api.forwarding import Forwarding
from lbctl.serve.api.replica_shares import ShareTable
from lbctl.serve.api.replica_states import StateTimes
from lbctl.serve.drivers.supervisor import DriverSupervisor
from lbctl.serve.errors import NotSavedError
from lbctl.serve.fleet.publisher import PublishedFleet, Publisher
from lbctl.serve.fleet.recent import RecentSnapshots
from lbctl.serve.fleet.reconciler import Reconciler
from lbctl.serve.ha.member import Member
from lbctl.serve.metrics.instruments import Metrics
from lbctl.serve.operator.overrides import OverrideService
from lbctl.serve.operator.rollback import RollbackService
from lbctl.serve.operator.rollouts import RolloutService
from lbctl.serve.picker.feed import Feed
from lbctl.serve.picker.manager import Picker
from lbctl.serve.settings import Options
from lbctl.serve.state.audit import AuditLog
from lbctl.serve.state.history import Cause
from lbctl.serve.telemetry.service import Telemetry
from lbctl.serve.traffic.service import Traffic
from lbctl.targets import xds_kinds
from lbctl.xds.protocol.node_status import NodeStatus

NO_FLEET = "no fleet yet: the files cannot be served, and the state holds no earlier one"
_STARTING = "starting"
_POOLS_KEPT = 0.5
"""Seconds for which the rows of the pools are shown again while the fleet is the same: many clients ask for them."""
_STATES_INTERVAL = 2.0
_STATES_PAUSE = 100.0
"""The pause between two looks at the states, as a multiple of what a look takes."""
EMPTY = Topology((), (), ())


class Views:
    """Builds each document of the API when it is asked for, from what the other parts know."""

    def __init__(
        self,
        options: Options,
        endpoints: Endpoints,
        publisher: Publisher,
        reconciler: Reconciler,
        nodes: NodeStatus,
        metrics: Metrics,
        telemetry: Telemetry,
        overrides: OverrideService,
        rollouts: RolloutService,
        rollbacks: RollbackService,
        audit: AuditLog,
        supervisor: DriverSupervisor,
        events: EventLog,
        traffic: Traffic,
        recent: RecentSnapshots,
        picker: Picker,
        member: Member | None = None,
    ) -> None:
        self._picker = picker
        self._member = member
        self.events = events
        self.dashboard = Dashboard(self, events)
        self._ending = False
        self._since = time.time()
        self._options = options
        self._endpoints = endpoints
        self._publisher = publisher
        self._reconciler = reconciler
        self._nodes = nodes
        self._metrics = metrics
        self._telemetry = telemetry
        self._overrides = overrides
        self._rollouts = rollouts
        self._rollbacks = rollbacks
        self._audit = audit
        self._supervisor = supervisor
        self._traffic = traffic
        self._recent = recent
        self._state_times = StateTimes()
        self._pools: tuple[PublishedFleet | None, float, schema.Pools] = (None, 0.0, schema.Pools(()))

    def end(self) -> None:
        """Report from now on that the process ends, and end the streams of events."""
        self._ending = True
        self.events.close()
        self.dashboard.end()

    def ready(self) -> str:
        """Return why no proxy is answered yet; empty when proxies are answered."""
        if self._ending:
            return "ending"
        if self._reconciler.last_reload is None:
            return _STARTING
        if self._publisher.served is None:
            return NO_FLEET
        return "" if self._endpoints.opened.xds or self._options.dry_run else _STARTING

    def status(self) -> schema.Status:
        """Return `/api/v1/status`."""
        served, proxies = self._publisher.served, self.proxies().proxies
        envoys_and_driven = [item for item in proxies if item.kind != "reader"]
        return schema.Status(
            version=__version__,
            since=status_rows.timestamp(self._since),
            ready=not self.ready(),
            waiting=self.ready() or None,
            dry_run=self._options.dry_run,
            snapshot=self._snapshot(),
            fleet=self._fleet_files(),
            served=history_rows.served(self._rollbacks.history),
            restart=self._endpoints.restart_needed(served.loaded.source) if served else (),
            proxies=dict(sorted(Counter(item.state for item in envoys_and_driven).items())),
            unmatched=tuple(
                schema.UnmatchedNode(item.node, item.reason) for item in envoys_and_driven if item.state == "REFUSED"
            ),
            overrides=self.overrides().overrides,
            control=self._control(),
            sources=self._sources(),
            names=tuple(status_rows.discovered_name(item) for item in self._publisher.discovery.names()),
            listens=self._listens(),
            picker=pick_rows.status(self._picker),
        )

    def proxies(self) -> schema.Proxies:
        """Return `/api/v1/proxies`."""
        envoys = map(status_rows.xds_proxy, self._nodes.proxies())
        return schema.Proxies((*envoys, *map(status_rows.driven_proxy, self._supervisor.rows())))

    def pools(self) -> schema.Pools:
        """Return `/api/v1/pools`."""
        served = self._publisher.served
        if served is None:
            return schema.Pools(())
        fleet, since, pools = self._pools
        if fleet is not served or time.monotonic() - since > _POOLS_KEPT:
            pools = schema.Pools(tuple(pool_rows.pools(served.composed, self._live(served))))
            self._pools = served, time.monotonic(), pools
        return pools

    async def follow_states(self) -> None:
        """Look at the states of the replicas now and then, so that each has the time since when it is in its state."""
        while True:
            started = time.perf_counter()
            self.pools()
            await asyncio.sleep(max(_STATES_INTERVAL, _STATES_PAUSE * (time.perf_counter() - started)))

    def live(self) -> Iterator[tuple[schema.LivePool, Iterable[schema.LiveReplica]] | None]:
        """Yield each pool with its replicas, as the dashboard shows them, and None where others may work meanwhile."""
        served = self._publisher.served
        if served is not None:
            for pool in pool_rows.pools_in_parts(served.composed, self._live(served)):
                yield None if pool is None else (rows.pool(pool), self._live_replicas(pool))

    def _live_replicas(self, pool: schema.Pool) -> Iterator[schema.LiveReplica]:
        reports = self._telemetry.loop.reports
        for item in pool.replicas:
            report = reports.get((pool.name, item.name))
            yield rows.replica(pool.name, item, report.signals.values if report else {})

    @property
    def history_seconds(self) -> float:
        """How far back the dashboard's charts go."""
        return self._topology().control.dashboard_history / 1000

    def fleet(self) -> schema.FleetSettings:
        """Return `/api/v1/fleet`."""
        served = self._publisher.served
        settings = of_fleet(served.loaded.compiled.topology) if served else {}
        return schema.FleetSettings({dotted(path): value for path, value in settings.items()})

    def signals(self) -> schema.Signals:
        """Return `/api/v1/signals`."""
        states, now = self._telemetry.source_states, time.monotonic()
        return schema.Signals(
            tuple(
                row
                for pool in controlled(self._topology())
                for row in decision_rows.signals(
                    pool,
                    self._telemetry.loop.reports,
                    {item.name: states(pool.name, item.name) for item in pool.replicas},
                    now,
                )
            )
        )

    def decisions(self) -> schema.Decisions:
        """Return `/api/v1/decisions`."""
        served = self._publisher.served
        if served is None:
            return schema.Decisions(())
        rows = self.proxies().proxies
        acknowledged = decision_rows.acknowledged(rows, served.cached_snapshot.version)
        shares = ShareTable(served.composed.whole, carriers(served, rows, self._supervisor, self._recent))
        topology, own = served.composed.whole.topology, self._supervisor.composed()
        proxies = (*xds_proxies(topology, xds_kinds()).all, *self._publisher.driven(topology))
        return schema.Decisions(
            tuple(
                row
                for pool in controlled(topology)
                for row in self._decisions(
                    decision_rows.published_weights(pool, served.composed, proxies, own, shares.decided(pool.name)),
                    pool,
                    served.composed.overrides,
                    acknowledged,
                )
            )
        )

    async def explain_pick(self, body: dict[str, Any], actor: str) -> schema.PickExplanation:
        """Return which replica a request would be given. Raises BadRequestError and NotSavedError."""
        del actor
        return await pick_rows.explain(self._picker, body)

    def picks(self) -> schema.Picks:
        """Return `GET /api/v1/picks`."""
        return pick_rows.picks(self._picker)

    @property
    def pick_feed(self) -> Feed:
        """The tables for pickers."""
        return self._picker.feed

    def overrides(self) -> schema.Overrides:
        """Return `GET /api/v1/overrides`."""
        return schema.Overrides(tuple(decision_rows.override(item) for item in self._publisher.overrides))

    def metrics(self) -> bytes:
        """Return the page of metrics in the text format of Prometheus."""
        return self._metrics.page()

    async def audit(self) -> schema.Audit:
        """Return `GET /api/v1/audit`. Raises StoreError."""
        records = await self._audit.records()
        return schema.Audit(tuple(schema.AuditRecord(**asdict(item), hash=item.hash) for item in records))

    async def reload(self, allow_shrink: bool, actor: str) -> schema.ReloadResult:
        """Read the files now, and return what came of it."""
        with suppress(NotSavedError):  # a reload is as safe as a change of the files
            await self._audit.record(actor, "reload", "allow_shrink" if allow_shrink else "files")
        await self._reconciler.reload(allow_shrink=allow_shrink, cause=Cause(actor, "reload"))
        offered_again = self._endpoints.retry_rejected()
        last_reload = self._reconciler.last_reload
        return schema.ReloadResult(
            result=last_reload.result if last_reload else "invalid",
            refused=last_reload.refused if last_reload else None,
            offered_again=offered_again,
            snapshot=self._snapshot(),
            diagnostics=status_rows.diagnostics(last_reload.diagnostics if last_reload else ()),
        )

    def members(self) -> schema.Members:
        """Return `GET /api/v1/members`."""
        return member_rows.members(self._member)

    def forwards_to(self) -> Forwarding | None:
        """Return where writes are forwarded to; None where this process carries them out."""
        if self._member is None or self._member.leads:
            return None
        return Forwarding(self._member.name, self._member.leader_api, self._api_certificate())

    def _api_certificate(self) -> str | None:
        tls = self._endpoints.settings.control.api_tls if self._endpoints.settings else None
        return tls.certificate if tls else None

    def history(self) -> schema.History:
        """Return `GET /api/v1/history`."""
        return schema.History(history_rows.entries(self._rollbacks.history))

    async def rollback(self, body: dict[str, Any], actor: str) -> schema.RollbackResult:
        """Serve an earlier fleet until the files change. Raises BadRequestError and NotSavedError."""
        entry, result = await self._rollbacks.act(body, actor)
        return schema.RollbackResult(
            result=result.result,
            refused=result.refused,
            digest=entry.digest,
            snapshot=self._snapshot(),
            diagnostics=status_rows.diagnostics(result.diagnostics),
        )

    def rollouts(self) -> schema.Rollouts:
        """Return `GET /api/v1/rollouts`."""
        served = self._publisher.served
        if served is None:
            return schema.Rollouts(())
        files, composed = served.loaded.compiled.topology, served.composed.whole.topology
        now = time.time()
        states = follow(self._publisher.rollouts, files, now)  # those that are saved may be of the files before
        return schema.Rollouts(tuple(rollout_rows.rows(states, files, composed, served.composed.overrides, now)))

    async def act_on_rollout(self, body: dict[str, Any], actor: str) -> schema.RolloutResult:
        """Start, move or end a rollout. Raises BadRequestError and NotSavedError."""
        state = await self._rollouts.act(body, actor)
        return schema.RolloutResult(next(item for item in self.rollouts().rollouts if item.route == state.route))

    async def put_override(self, body: dict[str, Any], actor: str) -> schema.OverrideResult:
        """Hold an override from now on. Raises BadRequestError and NotSavedError."""
        override = await self._overrides.put(body, actor)
        return schema.OverrideResult(decision_rows.override(override), self._snapshot())

    async def remove_override(self, body: dict[str, Any], actor: str) -> schema.RemovalResult:
        """End an override. Raises BadRequestError and NotSavedError."""
        return schema.RemovalResult(await self._overrides.remove(body, actor), self._snapshot())

    def _live(self, served: PublishedFleet) -> pool_rows.Live:
        states = self._telemetry.loop.state.pools.values()
        return pool_rows.Live(
            tuple(carriers(served, self.proxies().proxies, self._supervisor, self._recent)),
            self._traffic.ledger,
            checks=self._supervisor.checks,
            health={(state.pool.name, item.replica.name): item.health for state in states for item in state.replicas},
            times=self._state_times,
            now=self._traffic.clock(),
            at=time.time(),
        )

    def _decisions(
        self,
        published: Mapping[str, decision_rows.PublishedWeight],
        pool: Pool,
        overrides: Overrides,
        acknowledged: schema.Acknowledged,
    ) -> Iterator[schema.Decision]:
        now = time.monotonic()
        reports = self._telemetry.loop.reports
        for item in self._telemetry.loop.decisions(pool.name):
            if item.replica in published:
                report = reports.get((pool.name, item.replica))
                by = report.member if report else ""
                yield decision_rows.decision(item, published[item.replica], overrides, acknowledged, now, by)

    def _control(self) -> tuple[schema.PoolControl, ...]:
        """Return the mode of every pool with telemetry, and which replicas are ejected or kept at the floor."""
        served = self._publisher.served
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
            for name, item in self._telemetry.loop.state.pools.items()
        )

    def _sources(self) -> schema.SourceCounts:
        """Count the sources of all replicas with telemetry, and those whose last scrape failed."""
        states = self._telemetry.source_states
        return decision_rows.sources(
            (pool.name, state)
            for pool in controlled(self._topology())
            for item in pool.replicas
            for state in states(pool.name, item.name)
        )

    def _topology(self) -> Topology:
        served = self._publisher.served
        return served.composed.whole.topology if served else EMPTY

    def _snapshot(self) -> schema.Snapshot | None:
        served = self._publisher.served
        if served is None:
            return None
        topology = served.composed.whole.topology
        return schema.Snapshot(
            version=served.cached_snapshot.version,
            at=status_rows.timestamp(served.at),
            age=round(max(0.0, time.time() - served.at), 3),
            origin=served.origin,
            pools=len(topology.pools),
            replicas=sum(len(pool.replicas) for pool in topology.pools),
        )

    def _fleet_files(self) -> schema.FleetFiles:
        """Return the result of the last read, with losses in the files or in answers to names that wait."""
        last_reload = self._reconciler.last_reload
        pending = (*(last_reload.shrink if last_reload else ()), *self._publisher.refused_answers)
        return schema.FleetFiles(
            paths=self._options.paths,
            valid=last_reload is not None and last_reload.valid,
            read=status_rows.when(last_reload.at if last_reload else None),
            refused=last_reload.refused if last_reload else None,
            shrink=status_rows.diagnostics(pending),
            diagnostics=status_rows.diagnostics(last_reload.diagnostics if last_reload else ()),
        )

    def _listens(self) -> schema.Listens:
        settings, opened = self._endpoints.settings, self._endpoints.opened
        state = settings.control.state if settings and not self._options.dry_run else None
        return schema.Listens(xds=opened.xds, xds_socket=opened.socket, api=opened.api, state=state)

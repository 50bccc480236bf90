"""Builds the parts of the control plane and connects them, once, into a frozen `Services`.

Each part gets what it needs as arguments; nothing is set on it afterwards. `app` runs these parts.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from lbctl.control.loop_output import LoopOutput
from lbctl.control.overrides import Overrides
from lbctl.control.rollouts import Rollouts
from lbctl.serve.api.endpoints import Endpoints
from lbctl.serve.api.events import EventLog
from lbctl.serve.api.gauges import Gauges
from lbctl.serve.api.pick_gauges import PickGauges
from lbctl.serve.api.traffic_gauges import TrafficGauges
from lbctl.serve.api.views import Views
from lbctl.serve.drivers.eligibility import driven
from lbctl.serve.drivers.supervisor import DriverSupervisor
from lbctl.serve.errors import CannotListenError
from lbctl.serve.fleet.history import FleetHistory, RestoredHistory
from lbctl.serve.fleet.publisher import Publisher
from lbctl.serve.fleet.recent import RecentSnapshots
from lbctl.serve.fleet.reconciler import Reconciler
from lbctl.serve.fleet.watch import FleetWatcher
from lbctl.serve.guard import Guard, Work
from lbctl.serve.ha.clock import FleetClock
from lbctl.serve.ha.election import Election
from lbctl.serve.ha.gauges import MemberGauges
from lbctl.serve.ha.member import Member, SharedParts
from lbctl.serve.metrics.instruments import Metrics
from lbctl.serve.operator.evidence import RolloutEvidence
from lbctl.serve.operator.overrides import OverrideService
from lbctl.serve.operator.rollback import RollbackService
from lbctl.serve.operator.rollouts import RolloutService
from lbctl.serve.picker.manager import Picker
from lbctl.serve.picker.tables import Measured
from lbctl.serve.settings import Options
from lbctl.serve.state.audit import AuditLog
from lbctl.serve.state.authority import Authority
from lbctl.serve.state.interface import SharedStore
from lbctl.serve.state.records import SavedFleet
from lbctl.serve.state.saved import SavedState
from lbctl.serve.telemetry.service import SAVE_SHARED, Telemetry, saved_loop_output
from lbctl.serve.traffic.envoy_conditions import EnvoyConditions
from lbctl.serve.traffic.load_reports import LoadReports
from lbctl.serve.traffic.request_logs import RequestLogs
from lbctl.serve.traffic.service import Traffic
from lbctl.targets.load import Loaded
from lbctl.xds.protocol.node_status import NodeStatus

OnFleet = Callable[[Loaded, bool], Awaitable[None]]
"""Is called with the first fleet: with False before its resources are built, with True when they can be served."""


@dataclass(frozen=True, slots=True)
class RestoredState:
    """The state that an earlier process has saved."""

    fleet: SavedFleet | None = None
    """The last good fleet; None where none was saved."""
    drains: Mapping[tuple[str, str], float] | None = None
    """(pool, replica) → when its drain began, in seconds since the epoch; None where no drains were saved."""
    output: LoopOutput = field(default_factory=LoopOutput)
    """The weights and ejections that the control loop last published."""
    overrides: Overrides = ()
    """The overrides of operators."""
    rollouts: Rollouts = ()
    """The state of each rollout."""
    history: RestoredHistory = field(default_factory=RestoredHistory)
    """The fleets that were served, and the rollback in force."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What makes this process one of several members of a control plane."""

    name: str
    """The member's name."""
    store: SharedStore
    """The store of all members."""
    ttl: float
    """The duration of the lease in seconds."""
    authority: Authority
    """Whether this member may decide and act now."""
    clock: FleetClock = field(default_factory=FleetClock)
    """The time of all members."""
    marker: Path | None = None
    """The file of this machine that says that it has joined; None: that is not kept."""


@dataclass(frozen=True, slots=True)
class Services:
    """The running parts of one process."""

    guard: Guard
    """Starts tasks, and restarts those that fail."""
    watcher: FleetWatcher
    """Reports changes of the fleet's files."""
    publisher: Publisher
    """Composes and publishes what the proxies get."""
    reconciler: Reconciler
    """Reads the files and hands valid fleets to the publisher."""
    telemetry: Telemetry
    """Scrapes metrics and runs the control loop."""
    overrides: OverrideService
    """Executes and expires the overrides of operators."""
    rollouts: RolloutService
    """Advances rollouts."""
    supervisor: DriverSupervisor
    """Runs a driver for each proxy of this machine."""
    traffic: Traffic
    """Reads what the proxies count, and has the ledger of it."""
    load_reports: LoadReports
    """Adds the load reports of Envoys to the ledger."""
    request_logs: RequestLogs
    """Adds the latencies of Envoys' requests to the ledger."""
    envoy_conditions: EnvoyConditions
    """Reads into the ledger what Envoys' own checks say."""
    picker: Picker
    """Runs the picker, and feeds it and others."""
    views: Views
    """Builds the answers of the API."""
    leading: Mapping[str, Work]
    """The tasks that run in the leader alone."""
    member: Member | None
    """Leads or follows; None where there is one process."""

    def tasks(self) -> Mapping[str, Work]:
        """Return the tasks that run as long as the process, by name; `app` adds those that follow files and clocks."""
        return {
            **(self.member.tasks() if self.member else self.leading),
            **self.traffic.tasks(),
            **self.picker.tasks(),
            "checks of Envoys": self.envoy_conditions.run,
            "states of replicas": self.views.follow_states,
            "dashboard": self.views.dashboard.run,
        }


async def restore(state: SavedState) -> RestoredState:
    """Load the state that an earlier process has saved. Raises StoreError."""
    return RestoredState(
        await state.last_fleet(),
        await state.drains(),
        await saved_loop_output(state, time.time()),
        await state.overrides(),
        await state.rollouts(),
        RestoredHistory(await state.history(), await state.rollback()),
    )


def build(
    options: Options,
    endpoints: Endpoints,
    metrics: Metrics,
    nodes: NodeStatus,
    state: SavedState,
    restored: RestoredState,
    on_fleet: OnFleet,
    shared: Shared | None = None,
) -> Services:
    """Build and connect the parts. None of them listens, reads files or decides yet."""
    now = shared.clock.now if shared else time.time
    authority = shared.authority if shared else Authority.unlimited()
    events = EventLog()
    guard = Guard(partial(_task_failed, metrics, events), fatal=(CannotListenError,))
    traffic = Traffic(
        nodes=lambda: (str(row["node"]) for row in nodes.proxies()),
        connected=lambda: {str(row["node"]) for row in supervisor.rows() if row["connected"]},
        log_bind=lambda: endpoints.traffic_log_bind,
        guard=guard,
    )
    publisher = Publisher(metrics, restored.drains or {}, driven, guard, now=now, traffic_log=traffic.log_address)
    if restored.fleet is not None:
        publisher.discovery.seed(restored.fleet.discovered)
    watcher = FleetWatcher(options.paths)
    audit = AuditLog(state, now)
    history = FleetHistory(options.paths, state, restored.history)
    reconciler = Reconciler(options.paths, publisher, watcher, metrics, state, audit, history, on_fleet, events)
    telemetry = Telemetry(
        publisher, reconciler, metrics.latency, state, restored.output, audit, traffic.in_flight, guard,
        authority, *((SAVE_SHARED,) if shared else ()),
    )  # fmt: skip
    load_reports = LoadReports(traffic.ledger, traffic.clock)
    request_logs = RequestLogs(traffic.ledger, traffic.clock)
    envoy_conditions = EnvoyConditions(traffic.ledger, nodes.connected_to, traffic.clock)
    overrides = OverrideService(publisher, reconciler, telemetry.loop, state, audit, restored.overrides, now)
    evidence = RolloutEvidence(traffic.ledger, traffic.clock)
    rollouts = RolloutService(
        publisher, reconciler, state, audit, evidence, events.rollouts_changed, restored.rollouts, now
    )
    supervisor = DriverSupervisor(telemetry.eject, guard, dry_run=options.dry_run, permit=lambda: authority.acts)
    picker = Picker(
        lambda: Measured(
            time.monotonic(),
            telemetry.loop.reports,
            supervisor.checks,
            lambda key: traffic.ledger.conditions(key, traffic.clock()),
            traffic.assigned(),
        ),
        lambda: endpoints.settings.control.xds_tls if endpoints.settings else None,
        metrics.task_failed,
        dry_run=options.dry_run,
        insecure=options.insecure,
    )
    recent = RecentSnapshots(lambda: {str(row["last_good"]) for row in (*nodes.proxies(), *supervisor.rows())})
    publisher.subscribe("drivers: new fleet", supervisor.follow)
    publisher.subscribe("traffic: new fleet", traffic.follow)
    publisher.subscribe("load reports: new fleet", load_reports.follow)
    publisher.subscribe("request logs: new fleet", request_logs.follow)
    publisher.subscribe("checks of Envoys: new fleet", envoy_conditions.follow)
    publisher.subscribe("recent snapshots: new fleet", recent.follow)
    publisher.subscribe("picker: new fleet", picker.follow)
    publisher.subscribe("events: new fleet", events.follow)
    deciding = telemetry.tasks_of_decisions()
    acting = {
        "save decisions": telemetry.save_periodically,
        "expiry of overrides": overrides.run,
        "rollouts": rollouts.run,
        "analysis of rollouts": rollouts.run_analysis,
        "saving again": reconciler.save_again,
        "drivers": supervisor.run,
    }
    parts = SharedParts(publisher, reconciler, telemetry, overrides, rollouts, history)
    member = _member(shared, state, parts, guard, deciding, acting, endpoints, events) if shared else None
    metrics.registry.register(Gauges(publisher, telemetry, time.monotonic))
    views = Views(
        options,
        endpoints,
        publisher,
        reconciler,
        nodes,
        metrics,
        telemetry,
        overrides,
        rollouts,
        RollbackService(reconciler, history),
        audit,
        supervisor,
        events,
        traffic,
        recent,
        picker,
        member,
    )
    metrics.registry.register(PickGauges(picker, traffic.ledger))
    if member is not None:
        metrics.registry.register(MemberGauges(member))
    metrics.registry.register(TrafficGauges(traffic, views.pools, views.proxies))
    return Services(
        guard,
        watcher,
        publisher,
        reconciler,
        telemetry,
        overrides,
        rollouts,
        supervisor,
        traffic,
        load_reports,
        request_logs,
        envoy_conditions,
        picker,
        views,
        {**deciding, **acting},
        member,
    )


def _member(
    shared: Shared,
    state: SavedState,
    parts: SharedParts,
    guard: Guard,
    deciding: Mapping[str, Work],
    acting: Mapping[str, Work],
    endpoints: Endpoints,
    events: EventLog,
) -> Member:
    election = Election(shared.store, state, shared.authority, shared.ttl)
    return Member(
        shared.name, shared.store, state, shared.authority, election, shared.clock, parts, guard, deciding, acting,
        lambda: endpoints.advertised(shared.name), events.role_changed,
    )  # fmt: skip


def _task_failed(metrics: Metrics, events: EventLog, task: str) -> None:
    metrics.task_failed(task)
    events.task_failed(task)


async def build_from(
    options: Options, endpoints: Endpoints, metrics: Metrics, nodes: NodeStatus, state: SavedState, on_fleet: OnFleet,
    shared: Shared | None = None,
) -> tuple[Services, RestoredState]:  # fmt: skip
    """Load the saved state, and build the parts with it. Raises StoreError."""
    restored = await restore(state)
    services = build(options, endpoints, metrics, nodes, state, restored, on_fleet, shared)
    if services.member is not None:
        await services.member.prepare()
    return services, restored

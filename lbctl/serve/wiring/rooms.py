"""Builds the parts of each room of the control plane from the inputs and from the parts of the rooms below it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from lbctl.runtime.guard import Guard
from lbctl.serve.api.events import EventLog
from lbctl.serve.discovery.own_listeners import OwnBinds
from lbctl.serve.drivers.eligibility import driven
from lbctl.serve.drivers.supervisor import DriverSupervisor
from lbctl.serve.fleet.history import FleetHistory
from lbctl.serve.fleet.publisher import Publisher
from lbctl.serve.fleet.recent import RecentSnapshots
from lbctl.serve.fleet.reconciler import Reconciler
from lbctl.serve.fleet.watch import FleetWatcher
from lbctl.serve.ha.member import FleetMember
from lbctl.serve.ha.presence import steps_of_others
from lbctl.serve.operator.evidence import RolloutEvidence
from lbctl.serve.operator.overrides import OverrideService
from lbctl.serve.operator.rollback import RollbackService
from lbctl.serve.operator.rollouts import RolloutService, Unavailable, Unchecked
from lbctl.serve.operator.steps_in_force import StepsInForce
from lbctl.serve.picker.generated_key import own_key
from lbctl.serve.picker.manager import PickerManager
from lbctl.serve.picker.tables import FleetMeasurements
from lbctl.serve.telemetry.service import TelemetryService
from lbctl.serve.traffic.envoy_conditions import EnvoyConditions
from lbctl.serve.traffic.load_reports import LoadReports
from lbctl.serve.traffic.replica_checks import ReplicaChecks
from lbctl.serve.traffic.request_logs import RequestLogs
from lbctl.serve.traffic.service import Traffic
from lbctl.serve.wiring.inputs import Inputs
from lbctl.store.audit import AuditLog


@dataclass(frozen=True, slots=True)
class TrafficParts:
    """What reads the traffic of the proxies."""

    traffic: Traffic
    """Reads what the proxies count, and has the ledger of it."""
    load_reports: LoadReports
    """Adds the load reports of Envoys to the ledger."""
    request_logs: RequestLogs
    """Adds the latencies of Envoys' requests to the ledger."""
    envoy_conditions: EnvoyConditions
    """Reads into the ledger what Envoys' own checks say."""
    replica_checks: ReplicaChecks
    """Checks the replicas, to show their states."""


@dataclass(frozen=True, slots=True)
class FleetParts:
    """What reads and publishes the fleet."""

    publisher: Publisher
    """Composes and publishes what the proxies get."""
    watcher: FleetWatcher
    """Reports changes of the fleet's files."""
    audit: AuditLog
    """The record of who has changed what."""
    history: FleetHistory
    """The fleets that were served."""
    reconciler: Reconciler
    """Reads the files and hands valid fleets to the publisher."""


@dataclass(frozen=True, slots=True)
class OperatorParts:
    """What executes the operations of people."""

    overrides: OverrideService
    """Executes and expires overrides."""
    rollouts: RolloutService
    """Advances rollouts."""
    rollbacks: RollbackService
    """Serves earlier fleets again."""


def build_traffic(inputs: Inputs, guard: Guard, drivers: Callable[[], DriverSupervisor]) -> TrafficParts:
    """Build what reads the traffic; `drivers` returns the supervisor, which is built later."""
    nodes, endpoints = inputs.nodes, inputs.endpoints
    traffic = Traffic(
        nodes=lambda: (str(row["node"]) for row in nodes.proxies()),
        connected=lambda: {str(row["node"]) for row in drivers().rows() if row["connected"]},
        log_bind=lambda: endpoints.traffic_log_bind,
        guard=guard,
    )
    return TrafficParts(
        traffic,
        LoadReports(traffic.ledger, traffic.clock),
        RequestLogs(traffic.ledger, traffic.clock),
        EnvoyConditions(traffic.ledger, nodes.connected_to, nodes.admins, traffic.clock, traffic.pace),
        ReplicaChecks(guard),
    )


def build_fleet(
    inputs: Inputs, guard: Guard, traffic: Traffic, events: EventLog, picker: Callable[[], PickerManager]
) -> FleetParts:
    """Build what reads the files, composes them with the saved state and publishes the result.

    `picker` returns the manager of the picker, which is built later.
    """
    options, restored, state = inputs.options, inputs.restored, inputs.state
    publisher = Publisher(
        inputs.metrics, restored.drains or {}, driven, guard, now=inputs.now, traffic_log=traffic.log_address,
        picker=lambda topology: picker().place(topology),
        binds=OwnBinds(options.xds_bind, options.api_bind, options.picker_bind),
        picker_key=lambda topology: picker().own_key(topology),
    )  # fmt: skip
    if restored.fleet is not None:
        publisher.discovery.seed(restored.fleet.discovered)
    watcher = FleetWatcher(options.paths, guard=guard)
    audit = AuditLog(state, inputs.shared.clock.now if inputs.shared else time.time)
    history = FleetHistory(options.paths, state, restored.history)
    reconciler = Reconciler(
        options.paths, publisher, watcher, inputs.metrics, state, audit, history, inputs.on_fleet, events,
        options.state, writers=inputs.shared.writers if inputs.shared else "this process",
    )  # fmt: skip
    return FleetParts(publisher, watcher, audit, history, reconciler)


def build_telemetry(inputs: Inputs, guard: Guard, fleet: FleetParts, traffic: Traffic) -> TelemetryService:
    """Build the scraper and the control loop. Where members share a store, decisions are saved before they are sent."""
    return TelemetryService(
        fleet.publisher,
        fleet.reconciler,
        inputs.metrics.latency,
        inputs.state,
        inputs.restored.output,
        fleet.audit,
        traffic.requests_of,
        guard,
        inputs.authority,
        inputs.shared is not None,
    )


def build_operator(
    inputs: Inputs,
    fleet: FleetParts,
    telemetry: TelemetryService,
    traffic: Traffic,
    events: EventLog,
    steps: StepsInForce,
    unavailable: Unavailable,
    unchecked: Unchecked,
) -> OperatorParts:
    """Build overrides, rollouts with the evidence about them, and rollbacks."""
    publisher, reconciler, audit, state = fleet.publisher, fleet.reconciler, fleet.audit, inputs.state
    overrides = OverrideService(
        publisher, reconciler, telemetry.loop, state, audit, inputs.restored.overrides, inputs.now
    )
    evidence = RolloutEvidence(traffic.ledger, traffic.clock)
    rollouts = RolloutService(
        publisher, reconciler, state, audit, evidence, events.rollouts_changed, steps.routes, unavailable,
        unchecked, inputs.restored.rollouts, inputs.now,
    )  # fmt: skip
    return OperatorParts(overrides, rollouts, RollbackService(reconciler, fleet.history))


def build_drivers(inputs: Inputs, guard: Guard, telemetry: TelemetryService) -> DriverSupervisor:
    """Build the supervisor of the drivers."""
    authority = inputs.authority
    return DriverSupervisor(telemetry.eject, guard, dry_run=inputs.options.dry_run, permit=lambda: authority.acts)


def build_picker(
    inputs: Inputs, fleet: FleetParts, telemetry: TelemetryService, supervisor: DriverSupervisor, traffic: Traffic
) -> PickerManager:
    """Build what runs the picker and feeds it."""
    endpoints = inputs.endpoints
    return PickerManager(
        lambda: FleetMeasurements(
            time.monotonic(),
            telemetry.loop.reports,
            supervisor.checks,
            lambda key: traffic.ledger.conditions(key, traffic.clock()),
            lambda key: traffic.ledger.judged_by(key, traffic.clock()),
            traffic.assigned(),
            telemetry.loop.restarts,
        ),
        lambda: endpoints.settings.control.xds_tls if endpoints.settings else None,
        inputs.metrics.task_failed,
        lambda cause: fleet.reconciler.refresh(cause, save=False),
        lambda: traffic.ledger.requests,
        own_key=lambda: own_key(endpoints.settings.state) if endpoints.settings else "",
        bind=inputs.options.picker_bind,
        dry_run=inputs.options.dry_run,
        insecure=inputs.options.insecure,
    )


def build_steps(
    inputs: Inputs,
    supervisor: Callable[[], DriverSupervisor],
    recent: Callable[[], RecentSnapshots],
    member: Callable[[], FleetMember | None],
) -> StepsInForce:
    """Build what compares the steps of rollouts with what proxies have. The arguments return parts that come later."""
    nodes = inputs.nodes

    def announced() -> frozenset[str]:
        current = member()
        return steps_of_others(current.members, current.name) if current is not None else frozenset()

    return StepsInForce(
        lambda: [*nodes.proxies(), *supervisor().rows()], lambda version: recent().get(version), announced
    )


def build_recent(inputs: Inputs, supervisor: DriverSupervisor) -> RecentSnapshots:
    """Build what keeps the snapshots that proxies still run."""
    nodes = inputs.nodes
    return RecentSnapshots(lambda: {str(row["last_good"]) for row in (*nodes.proxies(), *supervisor.rows())})

"""Builds each `serve` package's parts from the inputs and from the parts of the packages below it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from lbctl.ir.address import Address
from lbctl.ir.topology import Topology
from lbctl.runtime.guard import Guard
from lbctl.serve.api.events import EventLog
from lbctl.serve.api.replica_states import ReplicaSources, ReplicaStates
from lbctl.serve.discovery.own_listeners import OwnBinds
from lbctl.serve.discovery.service import DiscoveryService
from lbctl.serve.drivers.eligibility import driven
from lbctl.serve.drivers.supervisor import DriverSupervisor
from lbctl.serve.fleet.history import FleetHistory
from lbctl.serve.fleet.inputs import FleetInputs, PickerPlace
from lbctl.serve.fleet.live import LiveFleet
from lbctl.serve.fleet.log import PublicationLog, ReloadLog
from lbctl.serve.fleet.publisher import Publisher
from lbctl.serve.fleet.recent import RecentSnapshots
from lbctl.serve.fleet.reconciler import Reconciler
from lbctl.serve.fleet.saver import FleetSaver
from lbctl.serve.fleet.watch import FleetWatcher
from lbctl.serve.ha.presence import KnownMembers
from lbctl.serve.operator.evidence import RolloutEvidence
from lbctl.serve.operator.overrides import OverrideService
from lbctl.serve.operator.rollback import RollbackService
from lbctl.serve.operator.rollouts import RolloutService, Unavailable, Unchecked
from lbctl.serve.operator.steps_in_force import StepsInForce
from lbctl.serve.picker.generated_key import own_key
from lbctl.serve.picker.manager import PickerManager
from lbctl.serve.picker.tables import FleetMeasurements
from lbctl.serve.telemetry.control_loop import ControlLoop
from lbctl.serve.telemetry.deciding import Control, DecisionPublisher
from lbctl.serve.telemetry.saving import DecisionSaver, NoWriteAhead, StoreWriteAhead
from lbctl.serve.telemetry.scraping import FleetScraper
from lbctl.serve.traffic.envoy_conditions import EnvoyConditions
from lbctl.serve.traffic.load_reports import LoadReports
from lbctl.serve.traffic.replica_checks import ReplicaChecks
from lbctl.serve.traffic.request_logs import RequestLogs
from lbctl.serve.traffic.service import Traffic
from lbctl.serve.wiring.inputs import Inputs
from lbctl.store.audit import AuditLog


@dataclass(frozen=True, slots=True)
class TrafficParts:
    """The parts that read the proxies' traffic."""

    traffic: Traffic
    """Reads the proxies' counters and owns the ledger."""
    load_reports: LoadReports
    """Adds the Envoys' load reports to the ledger."""
    request_logs: RequestLogs
    """Adds the latencies of the Envoys' requests to the ledger."""
    envoy_conditions: EnvoyConditions
    """Reads the results of the Envoys' own checks into the ledger."""
    replica_checks: ReplicaChecks
    """Checks the replicas in order to display their states."""


@dataclass(frozen=True, slots=True)
class FleetParts:
    """The parts that read and publish the fleet."""

    discovery: DiscoveryService
    """Provides the replica sources' answers."""
    publisher: Publisher
    """Builds and sends the proxies' configuration."""
    live: LiveFleet
    """Publishes every change to the fleet's inputs."""
    watcher: FleetWatcher
    """Reports changes to the fleet's files."""
    audit: AuditLog
    """The audit log."""
    history: FleetHistory
    """The previously published fleets."""
    reconciler: Reconciler
    """Reads the files and passes valid fleets on for publication."""


@dataclass(frozen=True, slots=True)
class TelemetryParts:
    """The parts that determine weights and health."""

    loop: ControlLoop
    """Makes decisions based on the scraper's reports."""
    scraping: FleetScraper
    """Scrapes metrics."""
    deciding: DecisionPublisher
    """Publishes the control loop's decisions."""
    saving: DecisionSaver
    """Saves the control loop's decisions."""


@dataclass(frozen=True, slots=True)
class OperatorParts:
    """The parts that perform operators' actions."""

    overrides: OverrideService
    """Executes and expires overrides."""
    rollouts: RolloutService
    """Advances rollouts."""
    rollbacks: RollbackService
    """Republishes earlier fleets."""


def build_traffic(inputs: Inputs, guard: Guard, supervisor: DriverSupervisor) -> TrafficParts:
    """Build the parts that read the traffic."""
    nodes, endpoints = inputs.nodes, inputs.endpoints
    traffic = Traffic(
        nodes=lambda: (row.node for row in nodes.proxies()),
        connected=supervisor.connected,
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


def build_audit(inputs: Inputs) -> AuditLog:
    """Build the audit log."""
    return AuditLog(inputs.state, inputs.shared.clock.now if inputs.shared else time.time)


def build_control(inputs: Inputs, audit: AuditLog, traffic: Traffic, supervisor: DriverSupervisor) -> Control:
    """Build the control loop."""
    latency, saved = inputs.metrics.latency, inputs.restored.output
    return Control.of(saved, audit, latency, traffic.requests_of, supervisor.ejected)


def build_fleet(
    inputs: Inputs, guard: Guard, audit: AuditLog, events: EventLog, traffic: Traffic, picker: PickerManager
) -> FleetParts:
    """Build the parts that read the files, combine them with the saved state, and publish the result."""
    options, restored, state = inputs.options, inputs.restored, inputs.state
    publisher = Publisher(inputs.metrics, driven, guard, inputs.now)
    discovery = DiscoveryService(guard, binds=OwnBinds(options.xds_bind, options.api_bind, options.picker_bind))
    if restored.fleet is not None:
        discovery.seed(restored.fleet.discovered)
    watcher = FleetWatcher(options.paths, guard=guard)
    history = FleetHistory(options.paths, state, restored.history)
    saver = FleetSaver(publisher, state, history, restored.drains)
    publications = PublicationLog(publisher, events, audit)
    known = FleetInputs(
        decisions=restored.output, overrides=restored.overrides, rollouts=restored.rollouts,
        drains=restored.drains or {},
    )  # fmt: skip
    live = LiveFleet(publisher, discovery, _Places(traffic, picker), saver, publications, known, inputs.now)
    reconciler = Reconciler(
        options.paths, live, watcher, saver, publications, ReloadLog(publisher, inputs.metrics, events), state, audit,
        history, events, options.state,
        writers=inputs.shared.writers if inputs.shared else "this process",
    )  # fmt: skip
    return FleetParts(discovery, publisher, live, watcher, audit, history, reconciler)


class _Places:
    """This process's addresses that are used by a fleet's proxies."""

    def __init__(self, traffic: Traffic, picker: PickerManager) -> None:
        self._traffic = traffic
        self._picker = picker

    def picker(self, topology: Topology) -> PickerPlace:
        """Return the picker address for this fleet's proxies."""
        return self._picker.place(topology)

    def picker_key(self, topology: Topology) -> str:
        """Return the key for picker requests created by this process."""
        return self._picker.own_key(topology)

    def traffic_log(self, topology: Topology) -> Address | None:
        """Return the address for this fleet's traffic log."""
        return self._traffic.log_address(topology)


def build_telemetry(inputs: Inputs, guard: Guard, live: LiveFleet, control: Control) -> TelemetryParts:
    """Build the telemetry parts. If members share a store, decisions are saved before they are published."""
    loop, authority = control.loop, inputs.authority
    saver = DecisionSaver(inputs.state, loop, control.audit, inputs.restored.output, authority)
    ahead = StoreWriteAhead(saver, authority) if inputs.shared else NoWriteAhead()
    deciding = DecisionPublisher(live, control, inputs.metrics.latency, authority, ahead)
    return TelemetryParts(loop, FleetScraper(loop, guard), deciding, saver)


def build_replicas(
    inputs: Inputs, fleet: FleetParts, telemetry: TelemetryParts, supervisor: DriverSupervisor,
    observed: TrafficParts, recent: RecentSnapshots, picker: PickerManager,
) -> ReplicaStates:  # fmt: skip
    """Build the replicas' states."""
    return ReplicaStates(
        ReplicaSources(
            fleet.live, telemetry.loop, telemetry.saving, supervisor, inputs.nodes, observed.traffic,
            observed.replica_checks, recent, picker, is_alone=inputs.shared is None,
        )
    )  # fmt: skip


def build_operator(
    inputs: Inputs,
    fleet: FleetParts,
    loop: ControlLoop,
    traffic: Traffic,
    events: EventLog,
    steps: StepsInForce,
    unavailable: Unavailable,
    unchecked: Unchecked,
) -> OperatorParts:
    """Build overrides, rollouts with the evidence about them, and rollbacks."""
    live, audit, state = fleet.live, fleet.audit, inputs.state
    overrides = OverrideService(live, loop, state, audit, inputs.now)
    evidence = RolloutEvidence(traffic.ledger, traffic.clock)
    rollouts = RolloutService(
        live, state, audit, evidence, events.rollouts_changed, steps.routes, unavailable, unchecked, inputs.now,
    )  # fmt: skip
    return OperatorParts(overrides, rollouts, RollbackService(fleet.reconciler, fleet.history))


def build_drivers(inputs: Inputs, guard: Guard) -> DriverSupervisor:
    """Build the driver supervisor."""
    authority = inputs.authority
    return DriverSupervisor(guard, dry_run=inputs.options.dry_run, permit=lambda: authority.acts)


def build_picker(inputs: Inputs, loop: ControlLoop, supervisor: DriverSupervisor, traffic: Traffic) -> PickerManager:
    """Build the parts that run the picker and send it tables."""
    endpoints = inputs.endpoints
    return PickerManager(
        lambda: FleetMeasurements(
            time.monotonic(),
            loop.reports,
            supervisor.checks,
            lambda key: traffic.ledger.conditions(key, traffic.clock()),
            lambda key: traffic.ledger.judged_by(key, traffic.clock()),
            traffic.assigned(),
            loop.restarts,
        ),
        lambda: endpoints.settings.control.xds_tls if endpoints.settings else None,
        inputs.metrics.task_failed,
        lambda: traffic.ledger.requests,
        loop.suspect,
        own_key=lambda: own_key(endpoints.settings.state) if endpoints.settings else "",
        memory=lambda: endpoints.settings.state / "picker-memory" if endpoints.settings else None,
        bind=inputs.options.picker_bind,
        dry_run=inputs.options.dry_run,
        insecure=inputs.options.insecure,
    )


def build_steps(
    inputs: Inputs, supervisor: DriverSupervisor, recent: RecentSnapshots, known: KnownMembers
) -> StepsInForce:
    """Build the part that compares rollout steps with the proxies' configuration."""
    nodes = inputs.nodes
    return StepsInForce(lambda: [*nodes.proxies(), *supervisor.rows()], recent.get, known.steps)


def build_recent(inputs: Inputs, supervisor: DriverSupervisor) -> RecentSnapshots:
    """Build the part that keeps the snapshots that proxies are still running."""
    nodes = inputs.nodes
    return RecentSnapshots(
        lambda: {row.last_good for row in nodes.proxies()} | {row.last_good for row in supervisor.rows()}
    )

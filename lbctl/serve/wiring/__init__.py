"""Builds and connects the control plane's parts once, as a frozen `Services` object.

Each part receives its dependencies as arguments; none are set later. `builders` builds each package's parts, `build`
connects them, and `app` runs them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from lbctl.runtime.errors import CannotListenError
from lbctl.runtime.guard import Guard, Work
from lbctl.serve.api.endpoints import Endpoints
from lbctl.serve.api.events import EventLog
from lbctl.serve.api.gauges import Gauges
from lbctl.serve.api.pick_gauges import PickGauges
from lbctl.serve.api.replica_states import ReplicaStates
from lbctl.serve.api.served_api import ServedApi
from lbctl.serve.api.served_state import ServedState
from lbctl.serve.api.traffic_gauges import TrafficGauges
from lbctl.serve.drivers.supervisor import DriverSupervisor
from lbctl.serve.fleet.live import LiveFleet
from lbctl.serve.fleet.publisher import Publisher
from lbctl.serve.fleet.recent import RecentSnapshots
from lbctl.serve.ha.election import Election
from lbctl.serve.ha.gauges import MemberGauges
from lbctl.serve.ha.member import FleetMember
from lbctl.serve.ha.presence import KnownMembers
from lbctl.serve.ha.roles import RoleTasks, SharedParts
from lbctl.serve.metrics.instruments import Metrics
from lbctl.serve.operator.steps_in_force import StepsInForce
from lbctl.serve.picker.feed import Feed
from lbctl.serve.picker.manager import PickerManager
from lbctl.serve.settings import Options
from lbctl.serve.wiring import builders
from lbctl.serve.wiring.builders import FleetParts, OperatorParts, TelemetryParts, TrafficParts
from lbctl.serve.wiring.inputs import Inputs, RestoredState, Shared, restore
from lbctl.serve.wiring.services import Services
from lbctl.store.open import answered
from lbctl.store.saved import SavedState
from lbctl.xds.protocol.node_status import NodeStatus

__all__ = ["RestoredState", "Services", "Shared", "build", "build_from"]


async def build_from(
    options: Options, endpoints: Endpoints, metrics: Metrics, nodes: NodeStatus, state: SavedState,
    shared: Shared | None = None,
) -> tuple[Services, RestoredState]:  # fmt: skip
    """Load the saved state and build the parts from it. The function waits until the store responds.

    Raises StoreError.
    """
    restored = await answered(lambda: restore(state))
    services = build(Inputs(options, endpoints, metrics, nodes, state, restored, shared))
    if services.member is not None:
        await answered(services.member.prepare)
    return services, restored


def build(inputs: Inputs) -> Services:
    """Build and connect the parts. None of them listens, reads files or makes decisions yet."""
    events = EventLog()
    failed = partial(_task_failed, inputs.metrics, events)
    guard = Guard(failed, fatal=(CannotListenError,), started=inputs.metrics.task_started)
    audit = builders.build_audit(inputs)
    supervisor = builders.build_drivers(inputs, guard)
    observed = builders.build_traffic(inputs, guard, supervisor)
    control = builders.build_control(inputs, audit, observed.traffic, supervisor)
    picker = builders.build_picker(inputs, control.loop, supervisor, observed.traffic)
    fleet = builders.build_fleet(inputs, guard, audit, events, observed.traffic, picker)
    telemetry = builders.build_telemetry(inputs, guard, fleet.live, control)
    recent = builders.build_recent(inputs, supervisor)
    known = KnownMembers(inputs.shared.name if inputs.shared else "")
    steps = builders.build_steps(inputs, supervisor, recent, known)
    replicas = builders.build_replicas(inputs, fleet, telemetry, supervisor, observed, recent, picker)
    operator = builders.build_operator(
        inputs, fleet, telemetry.loop, observed.traffic, events, steps, replicas.unavailable, replicas.unchecked
    )
    _subscribe(fleet.publisher, telemetry, supervisor, observed, recent, picker, events)
    deciding = {**telemetry.scraping.tasks(), **telemetry.deciding.tasks()}
    acting = _acting_tasks(telemetry, operator, fleet.live, supervisor)
    not_acting = {"checks of picked pools": supervisor.check_picked}
    tasks = RoleTasks(deciding, acting, not_acting)
    member = _member(inputs, fleet, telemetry, operator, guard, tasks, events, steps, known, picker.feed)
    state = _served_state(
        inputs, fleet, telemetry, operator, supervisor, events, observed, recent, picker, replicas, member
    )
    api = ServedApi(state)
    _register_gauges(inputs.metrics, fleet, telemetry, picker, observed, member, api)
    return Services(
        guard=guard,
        watcher=fleet.watcher,
        discovery=fleet.discovery,
        publisher=fleet.publisher,
        live=fleet.live,
        reconciler=fleet.reconciler,
        loop=telemetry.loop,
        scraping=telemetry.scraping,
        saving=telemetry.saving,
        overrides=operator.overrides,
        rollouts=operator.rollouts,
        supervisor=supervisor,
        traffic=observed.traffic,
        load_reports=observed.load_reports,
        request_logs=observed.request_logs,
        envoy_conditions=observed.envoy_conditions,
        replica_checks=observed.replica_checks,
        picker=picker,
        api=api,
        leading={**deciding, **acting},
        member=member,
    )


def _task_failed(metrics: Metrics, events: EventLog, task: str) -> None:
    metrics.task_failed(task)
    events.task_failed(task)


def _subscribe(
    publisher: Publisher, telemetry: TelemetryParts, supervisor: DriverSupervisor, observed: TrafficParts,
    recent: RecentSnapshots, picker: PickerManager, events: EventLog,
) -> None:  # fmt: skip
    """Notify every part that follows the published fleet of each new fleet."""
    publisher.subscribe("control loop: new fleet", telemetry.deciding.use_fleet)
    publisher.subscribe("scraper: new fleet", telemetry.scraping.use_fleet)
    publisher.subscribe("drivers: new fleet", supervisor.use_fleet)
    publisher.subscribe("traffic: new fleet", observed.traffic.use_fleet)
    publisher.subscribe("load reports: new fleet", observed.load_reports.use_fleet)
    publisher.subscribe("request logs: new fleet", observed.request_logs.use_fleet)
    publisher.subscribe("checks of Envoys: new fleet", observed.envoy_conditions.use_fleet)
    publisher.subscribe("checks of replicas: new fleet", observed.replica_checks.use_fleet)
    publisher.subscribe("recent snapshots: new fleet", recent.keep)
    publisher.subscribe("picker: new fleet", picker.use_fleet)
    publisher.subscribe("events: new fleet", events.emit_overrides)


def _acting_tasks(
    telemetry: TelemetryParts, operator: OperatorParts, live: LiveFleet, supervisor: DriverSupervisor
) -> Mapping[str, Work]:
    """Return the tasks that save and execute decisions, by name.

    If there are several members, only the leader runs them.
    """
    return {
        "save decisions": telemetry.saving.run,
        "expiry of overrides": operator.overrides.run,
        "rollouts": operator.rollouts.run,
        "analysis of rollouts": operator.rollouts.run_analysis,
        "saving": live.keep_saved,
        "drivers": supervisor.run,
    }


def _member(
    inputs: Inputs, fleet: FleetParts, telemetry: TelemetryParts, operator: OperatorParts, guard: Guard,
    role_tasks: RoleTasks, events: EventLog, steps: StepsInForce, known: KnownMembers, feed: Feed,
) -> FleetMember | None:  # fmt: skip
    """Build the election and the parts that depend on it; return None if this is the only process."""
    shared, endpoints = inputs.shared, inputs.endpoints
    if shared is None:
        return None
    parts = SharedParts(
        fleet.live, fleet.reconciler, telemetry.loop, telemetry.scraping, telemetry.deciding, telemetry.saving,
        operator.overrides, operator.rollouts, fleet.history, feed,
    )  # fmt: skip
    election = Election(
        shared.store, inputs.state, shared.authority, shared.ttl, partial(events.store_changed, shared.name)
    )
    return FleetMember(
        known, shared.store, inputs.state, shared.authority, election, shared.clock, parts, guard, role_tasks,
        lambda: endpoints.advertised(shared.name), events, steps,
    )  # fmt: skip


def _served_state(
    inputs: Inputs,
    fleet: FleetParts,
    telemetry: TelemetryParts,
    operator: OperatorParts,
    supervisor: DriverSupervisor,
    events: EventLog,
    observed: TrafficParts,
    recent: RecentSnapshots,
    picker: PickerManager,
    replicas: ReplicaStates,
    member: FleetMember | None,
) -> ServedState:
    return ServedState(
        inputs.options,
        inputs.endpoints,
        fleet.live,
        fleet.discovery,
        fleet.reconciler,
        inputs.nodes,
        inputs.metrics,
        telemetry.loop,
        telemetry.scraping,
        operator.overrides,
        operator.rollouts,
        operator.rollbacks,
        fleet.audit,
        supervisor,
        events,
        observed.traffic,
        observed.replica_checks,
        recent,
        picker,
        replicas,
        member,
    )


def _register_gauges(
    metrics: Metrics, fleet: FleetParts, telemetry: TelemetryParts, picker: PickerManager, observed: TrafficParts,
    member: FleetMember | None, api: ServedApi,
) -> None:  # fmt: skip
    """Add the gauges that are computed when the metrics page is read, in their order on the page."""
    metrics.registry.register(Gauges(fleet.live, telemetry.loop, telemetry.scraping, time.monotonic))
    metrics.registry.register(PickGauges(picker))
    if member is not None:
        metrics.registry.register(MemberGauges(member))
    pools, proxies, status = (api.operation(name) for name in ("pools", "proxies", "status"))
    metrics.registry.register(TrafficGauges(observed.traffic, pools, proxies, lambda: status().problems))

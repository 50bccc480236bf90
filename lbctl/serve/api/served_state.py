"""The state that the API shows, and the table of the functions that answer its operations."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from lbctl.serve.api.endpoints import Endpoints
from lbctl.serve.api.events import EventLog
from lbctl.serve.api.replica_states import ReplicaStates
from lbctl.serve.discovery.service import DiscoveryService
from lbctl.serve.drivers.supervisor import DriverSupervisor
from lbctl.serve.fleet.live import LiveFleet
from lbctl.serve.fleet.recent import RecentSnapshots
from lbctl.serve.fleet.reconciler import Reconciler
from lbctl.serve.ha.member import FleetMember
from lbctl.serve.metrics.instruments import Metrics
from lbctl.serve.operator.overrides import OverrideService
from lbctl.serve.operator.rollback import RollbackService
from lbctl.serve.operator.rollouts import RolloutService
from lbctl.serve.picker.manager import PickerManager
from lbctl.serve.settings import Options
from lbctl.serve.telemetry.service import TelemetryService
from lbctl.serve.traffic.replica_checks import ReplicaChecks
from lbctl.serve.traffic.service import Traffic
from lbctl.store.audit import AuditLog
from lbctl.xds.protocol.node_status import NodeStatus

OPERATIONS: dict[str, Callable[..., Any]] = {}
"""Operation of the route table → the function that answers it."""
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class ViewParts:
    """The parts of the process that know what the API shows."""

    options: Options
    """The options of the command."""
    endpoints: Endpoints
    """The sockets of the process."""
    live: LiveFleet
    """Has the fleet that is published, and its inputs."""
    discovery: DiscoveryService
    """Has the answers of the sources of replicas."""
    reconciler: Reconciler
    """Reads the files."""
    nodes: NodeStatus
    """What the Envoys have acknowledged and rejected."""
    metrics: Metrics
    """The control plane's own metrics."""
    telemetry: TelemetryService
    """Has the signals and the decisions."""
    overrides: OverrideService
    """Executes overrides."""
    rollouts: RolloutService
    """Executes operations on rollouts."""
    rollbacks: RollbackService
    """Executes rollbacks, and has the fleets that were served."""
    audit: AuditLog
    """The record of who has changed what."""
    supervisor: DriverSupervisor
    """Has the state of the driven proxies."""
    events: EventLog
    """The events that are streamed."""
    traffic: Traffic
    """Has the ledger of the traffic."""
    replica_checks: ReplicaChecks
    """Has what lbctl checks of the replicas by itself."""
    recent: RecentSnapshots
    """The snapshots that proxies still run."""
    picker: PickerManager
    """Has the state of the picker and its feed."""
    member: FleetMember | None = None
    """Leads or follows; None where there is one process."""


class ProcessState:
    """When the process has started, and whether it ends."""

    def __init__(self) -> None:
        self.since = time.time()
        self.ending = False


@dataclass(frozen=True, slots=True)
class ServedState:
    """The state that the functions of the API read."""

    parts: ViewParts
    """The parts of the process."""
    replicas: ReplicaStates
    """The states of the replicas."""
    process: ProcessState
    """The life of the process."""


def operation(function: _F) -> _F:
    """Have the function answer the operation of its name.

    Its arguments are the state, the query if the route has parameters, and the body and the name of the operator if
    the route has a body.
    """
    OPERATIONS[function.__name__] = function
    return function

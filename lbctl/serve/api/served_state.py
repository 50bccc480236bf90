"""The state exposed by the API."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

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
from lbctl.serve.telemetry.control_loop import ControlLoop
from lbctl.serve.telemetry.scraping import FleetScraper
from lbctl.serve.traffic.replica_checks import ReplicaChecks
from lbctl.serve.traffic.service import Traffic
from lbctl.store.audit import AuditLog
from lbctl.xds.protocol.node_status import NodeStatus


class ProcessState:
    """The process's start time, and whether it is shutting down."""

    def __init__(self) -> None:
        self.since = time.time()
        self.ending = False


@dataclass(frozen=True, slots=True)
class ServedState:
    """The parts of the process whose state the API functions read."""

    options: Options
    """The command's options."""
    endpoints: Endpoints
    """The process's sockets."""
    live: LiveFleet
    """Provides the published fleet and its inputs."""
    discovery: DiscoveryService
    """Provides the replica sources' answers."""
    reconciler: Reconciler
    """Reads the files."""
    nodes: NodeStatus
    """Versions that the Envoys have acknowledged and rejected."""
    metrics: Metrics
    """The control plane's own metrics."""
    loop: ControlLoop
    """Provides the signals and the decisions."""
    scraping: FleetScraper
    """Provides the metrics sources' states."""
    overrides: OverrideService
    """Executes overrides."""
    rollouts: RolloutService
    """Executes operations on rollouts."""
    rollbacks: RollbackService
    """Executes rollbacks and provides the previously published fleets."""
    audit: AuditLog
    """The audit log."""
    supervisor: DriverSupervisor
    """Provides the state of driven proxies."""
    events: EventLog
    """The streamed events."""
    traffic: Traffic
    """Provides the traffic ledger."""
    replica_checks: ReplicaChecks
    """Provides the results of lbctl's own replica checks."""
    recent: RecentSnapshots
    """Snapshots that proxies are still running."""
    picker: PickerManager
    """Provides the picker's state and its feed."""
    replicas: ReplicaStates
    """The states of the replicas."""
    member: FleetMember | None = None
    """The leader election; None if this is the only process."""
    process: ProcessState = field(default_factory=ProcessState)
    """The process's lifecycle."""

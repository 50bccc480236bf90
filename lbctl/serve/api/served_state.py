"""The state that the API shows."""

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
    """When the process has started, and whether it ends."""

    def __init__(self) -> None:
        self.since = time.time()
        self.ending = False


@dataclass(frozen=True, slots=True)
class ServedState:
    """The state that the functions of the API read: the parts of the process that know it."""

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
    """Versions that the Envoys have acknowledged and rejected."""
    metrics: Metrics
    """The control plane's own metrics."""
    loop: ControlLoop
    """Has the signals and the decisions."""
    scraping: FleetScraper
    """Has the states of the sources of metrics."""
    overrides: OverrideService
    """Executes overrides."""
    rollouts: RolloutService
    """Executes operations on rollouts."""
    rollbacks: RollbackService
    """Executes rollbacks, and has the fleets that were served."""
    audit: AuditLog
    """The audit log."""
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
    replicas: ReplicaStates
    """The states of the replicas."""
    member: FleetMember | None = None
    """Leads or follows; None where there is one process."""
    process: ProcessState = field(default_factory=ProcessState)
    """The life of the process."""

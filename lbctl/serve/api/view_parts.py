"""What the documents of the API are built from, and what several of them show."""

from __future__ import annotations

import time
from dataclasses import dataclass

from lbctl.api import schema
from lbctl.ir.topology import Topology
from lbctl.serve.api import status_rows
from lbctl.serve.api.endpoints import Endpoints
from lbctl.serve.api.events import EventLog
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

_EMPTY = Topology((), (), ())
"""The fleet before there is one."""


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


def proxy_rows(nodes: NodeStatus, supervisor: DriverSupervisor) -> tuple[schema.Proxy, ...]:
    """Return a row for each Envoy and reader by node id, then for each driven proxy by name."""
    envoys = map(status_rows.xds_proxy, nodes.proxies())
    return (*envoys, *map(status_rows.driven_proxy, supervisor.rows()))


def topology(live: LiveFleet) -> Topology:
    """Return the fleet that is published; an empty one before the first."""
    served = live.served
    return served.composed.whole.topology if served else _EMPTY


def snapshot(live: LiveFleet) -> schema.Snapshot | None:
    """Return what is published; None before the first fleet."""
    served = live.served
    if served is None:
        return None
    whole = served.composed.whole.topology
    return schema.Snapshot(
        version=served.cached_snapshot.version,
        at=status_rows.timestamp(served.at),
        age=round(max(0.0, time.time() - served.at), 3),
        origin=served.origin,
        pools=len(whole.pools),
        replicas=sum(len(pool.replicas) for pool in whole.pools),
    )

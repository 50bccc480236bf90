"""One process's running parts, connected to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lbctl.runtime.guard import Guard, Work
from lbctl.serve.api.served_api import ServedApi
from lbctl.serve.discovery.service import DiscoveryService
from lbctl.serve.drivers.supervisor import DriverSupervisor
from lbctl.serve.fleet.live import LiveFleet
from lbctl.serve.fleet.publisher import Publisher
from lbctl.serve.fleet.reconciler import Reconciler
from lbctl.serve.fleet.watch import FleetWatcher
from lbctl.serve.ha.member import FleetMember
from lbctl.serve.operator.overrides import OverrideService
from lbctl.serve.operator.rollouts import RolloutService
from lbctl.serve.picker.manager import PickerManager
from lbctl.serve.telemetry.control_loop import ControlLoop
from lbctl.serve.telemetry.saving import DecisionSaver
from lbctl.serve.telemetry.scraping import FleetScraper
from lbctl.serve.traffic.envoy_conditions import EnvoyConditions
from lbctl.serve.traffic.load_reports import LoadReports
from lbctl.serve.traffic.replica_checks import ReplicaChecks
from lbctl.serve.traffic.request_logs import RequestLogs
from lbctl.serve.traffic.service import Traffic


@dataclass(frozen=True, slots=True)
class Services:
    """One process's running parts."""

    guard: Guard
    """Starts tasks and restarts those that fail."""
    watcher: FleetWatcher
    """Reports changes to the fleet's files."""
    discovery: DiscoveryService
    """Provides the replica sources' answers."""
    publisher: Publisher
    """Builds and sends the proxies' configuration."""
    live: LiveFleet
    """Publishes every change to the fleet's inputs."""
    reconciler: Reconciler
    """Reads the files and passes valid fleets on for publication."""
    loop: ControlLoop
    """Decides weights and health."""
    scraping: FleetScraper
    """Scrapes metrics."""
    saving: DecisionSaver
    """Saves the control loop's decisions."""
    overrides: OverrideService
    """Executes operators' overrides and expires them."""
    rollouts: RolloutService
    """Advances rollouts."""
    supervisor: DriverSupervisor
    """Runs a driver for each proxy on this machine that needs one."""
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
    picker: PickerManager
    """Runs the picker, and sends tables to it and to other pickers."""
    api: ServedApi
    """Handles API requests."""
    leading: Mapping[str, Work]
    """Tasks that only the leader runs."""
    member: FleetMember | None
    """The leader election; None if this is the only process."""

    @property
    def leads(self) -> bool:
        """Whether this process saves its published fleet and its decisions, which a follower leaves to the leader."""
        return self.member is None or self.member.leads

    def tasks(self) -> Mapping[str, Work]:
        """Return the tasks that run until the process exits, by name; `app` adds those that follow files and clocks."""
        return {
            **(self.member.tasks() if self.member else self.leading),
            **self.traffic.tasks(),
            **self.picker.tasks(),
            "checks of Envoys": self.envoy_conditions.run,
            **self.replica_checks.tasks(),
            "states of replicas": self.api.state.replicas.watch,
            "dashboard": self.api.dashboard.run,
        }

"""The parts of a member, which decide in the leader and follow in others, and the tasks of each role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lbctl.runtime.guard import Work
from lbctl.serve.fleet.history import FleetHistory
from lbctl.serve.fleet.live import LiveFleet
from lbctl.serve.fleet.reconciler import Reconciler
from lbctl.serve.operator.overrides import OverrideService
from lbctl.serve.operator.rollouts import RolloutService
from lbctl.serve.telemetry.control_loop import ControlLoop
from lbctl.serve.telemetry.deciding import DecisionPublisher
from lbctl.serve.telemetry.saving import DecisionSaver
from lbctl.serve.telemetry.scraping import FleetScraper


@dataclass(frozen=True, slots=True)
class SharedParts:
    """The parts of this process that decide in the leader and follow in the others."""

    live: LiveFleet
    """Publishes the fleet."""
    reconciler: Reconciler
    """Reads the files."""
    loop: ControlLoop
    """Decides weights and health."""
    scraping: FleetScraper
    """Scrapes the pools of this member."""
    deciding: DecisionPublisher
    """Publishes what the control loop decides."""
    saving: DecisionSaver
    """Saves what the control loop decides."""
    overrides: OverrideService
    """Holds overrides."""
    rollouts: RolloutService
    """Moves rollouts."""
    history: FleetHistory
    """Has the fleets that were served."""


@dataclass(frozen=True, slots=True)
class RoleTasks:
    """The tasks that a member runs in one role and not in another, by name."""

    deciding: Mapping[str, Work]
    """The tasks of a leader, also of an isolated one."""
    acting: Mapping[str, Work]
    """The tasks of a leader that is not isolated."""
    not_acting: Mapping[str, Work]
    """The tasks of a member that does not act."""

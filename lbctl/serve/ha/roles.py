"""The parts of a member that decide if it is the leader and follow the leader otherwise, and each role's tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

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


class AnnouncedPickers(Protocol):
    """The pickers of this member and of the other members."""

    def announcement(self) -> tuple[str, ...]:
        """Return this member's pickers as strings for the other members."""

    def use_announcements(self, announcements: Iterable[str]) -> None:
        """Use the other members' pickers."""


@dataclass(frozen=True, slots=True)
class SharedParts:
    """The parts of this process that make decisions if it is the leader and follow the leader otherwise."""

    live: LiveFleet
    """Publishes the fleet."""
    reconciler: Reconciler
    """Reads the files."""
    loop: ControlLoop
    """Decides weights and health."""
    scraping: FleetScraper
    """Scrapes this member's pools."""
    deciding: DecisionPublisher
    """Publishes the decisions of the control loop."""
    saving: DecisionSaver
    """Saves the control loop's decisions."""
    overrides: OverrideService
    """Provides the overrides."""
    rollouts: RolloutService
    """Advances rollouts."""
    history: FleetHistory
    """Provides the previously published fleets."""
    pickers: AnnouncedPickers
    """Connects all members' pickers to each other."""


@dataclass(frozen=True, slots=True)
class RoleTasks:
    """Tasks that a member runs in one role but not in another, by name."""

    deciding: Mapping[str, Work]
    """Tasks of a leader, whether or not it is isolated."""
    acting: Mapping[str, Work]
    """Tasks of a leader that is not isolated."""
    not_acting: Mapping[str, Work]
    """Tasks of a member that is not acting as the leader."""

"""The inputs of the published fleet: one frozen value, which each source of change replaces by a new one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from lbctl.control import rollouts as moving
from lbctl.control.drains import Since
from lbctl.control.loop_output import LoopOutput
from lbctl.control.overrides import Overrides
from lbctl.control.rollouts import Rollouts
from lbctl.ir.address import Address
from lbctl.ir.topology import Topology
from lbctl.serve.discovery.interface import Discovered
from lbctl.targets.load import Loaded

Origin = Literal["files", "state", "history", "leader"]
"""Where the files of a fleet are from: the disk, the saved state, an entry of the history, or the leader."""


@dataclass(frozen=True, slots=True)
class PickerPlace:
    """Where the proxies of a fleet send their questions to the picker."""

    address: Address | None = None
    """Where the picker of this process listens; None where the fleet alone decides."""
    withheld: bool = False
    """Whether proxies get no address, because another process has it or no picker is started there."""
    key: str = ""
    """The key of questions that this process has made; empty where the fleet has another one or none."""


@dataclass(frozen=True, slots=True)
class FleetInputs:
    """Everything that the published fleet is composed of."""

    loaded: Loaded | None = None
    """The fleet as it was read; None before the first reading that gave one."""
    origin: Origin = "files"
    """Where its files are from."""
    discovered: Discovered = field(default_factory=Discovered)
    """The newest answers of discovery."""
    baseline: Discovered = field(default_factory=Discovered)
    """The answers with which those for the first published fleet are compared."""
    decisions: LoopOutput = field(default_factory=LoopOutput)
    """The weights and ejections that the control loop has decided."""
    overrides: Overrides = ()
    """The overrides of operators, including those that have ended and are not removed yet."""
    rollouts: Rollouts = ()
    """The state of each rollout."""
    drains: Since = field(default_factory=dict)
    """(pool, replica) → when its drain began, in seconds since the epoch, as it was saved or as the leader has it.

    They count for the next publication. Later ones continue from the drains that were composed.
    """
    picker: PickerPlace = field(default_factory=PickerPlace)
    """Where the proxies send their questions to the picker."""
    traffic_log: Address | None = None
    """Where the proxies send their traffic log; None where nothing can receive it."""

    @property
    def topology(self) -> Topology | None:
        """The fleet of the files, without discovered replicas; None before the first reading that gave one."""
        return self.loaded.compiled.topology if self.loaded else None

    def composes_like(self, before: FleetInputs) -> bool:
        """Return whether only notes about rollouts differ, so that no proxy gets anything else."""
        topology = self.topology
        if self.rollouts == before.rollouts or topology is None or replace(self, rollouts=before.rollouts) != before:
            return False
        return moving.splits(self.rollouts, topology) == moving.splits(before.rollouts, topology)


class Places(Protocol):
    """The addresses of this process that the proxies of a fleet get. The methods may open sockets."""

    def picker(self, topology: Topology) -> PickerPlace:
        """Return where the proxies of this fleet send their questions to the picker."""

    def picker_key(self, topology: Topology) -> str:
        """Return `PickerPlace.key` of this fleet, and open nothing."""

    def traffic_log(self, topology: Topology) -> Address | None:
        """Return where the proxies of this fleet send their traffic log; None where nothing can receive it."""

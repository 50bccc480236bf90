"""The inputs to the published fleet: a single frozen value, which each source of change replaces with a new one."""

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
"""Where a fleet's files came from: the disk, the saved state, a history entry, or the leader."""


@dataclass(frozen=True, slots=True)
class PickerPlace:
    """The picker address used by a fleet's proxies."""

    address: Address | None = None
    """This process's picker address; None if the fleet defines it."""
    withheld: bool = False
    """Whether proxies do not get an address, because it is used by another process or no picker is started there."""
    key: str = ""
    """The key for picker requests created by this process; empty if the fleet has a different key or none."""


@dataclass(frozen=True, slots=True)
class FleetInputs:
    """All inputs to the published fleet."""

    loaded: Loaded | None = None
    """The fleet as it was read; None before the first successful read."""
    origin: Origin = "files"
    """The origin of the fleet's files."""
    discovered: Discovered = field(default_factory=Discovered)
    """The newest discovery answers."""
    baseline: Discovered = field(default_factory=Discovered)
    """The answers with which the first published fleet is compared."""
    decisions: LoopOutput = field(default_factory=LoopOutput)
    """The control loop's weights and ejections."""
    overrides: Overrides = ()
    """The operators' overrides, including expired ones that have not been removed yet."""
    rollouts: Rollouts = ()
    """The state of each rollout."""
    drains: Since = field(default_factory=dict)
    """Maps each (pool, replica) pair to the time at which its drain began, in seconds since the epoch, as saved or as
    reported by the leader.

    These drains apply to the next publication. Later publications continue with the composed drains.
    """
    picker: PickerPlace = field(default_factory=PickerPlace)
    """The picker address for the proxies."""
    traffic_log: Address | None = None
    """The address for the proxies' traffic log; None if it cannot be received."""

    @property
    def topology(self) -> Topology | None:
        """The fleet as defined in the files, without discovered replicas; None before the first successful read."""
        return self.loaded.compiled.topology if self.loaded else None

    def composes_like(self, before: FleetInputs) -> bool:
        """Return whether only notes about rollouts differ, so that all proxies get the same configuration."""
        topology = self.topology
        if self.rollouts == before.rollouts or topology is None or replace(self, rollouts=before.rollouts) != before:
            return False
        return moving.splits(self.rollouts, topology) == moving.splits(before.rollouts, topology)


class Places(Protocol):
    """This process's addresses that are used by a fleet's proxies. Its methods may open sockets."""

    def picker(self, topology: Topology) -> PickerPlace:
        """Return the picker address for this fleet's proxies."""

    def picker_key(self, topology: Topology) -> str:
        """Return `PickerPlace.key` for this fleet, without opening a socket."""

    def traffic_log(self, topology: Topology) -> Address | None:
        """Return the address for this fleet's traffic log; None if the log cannot be received."""

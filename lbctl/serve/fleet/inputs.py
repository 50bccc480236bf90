"""The inputs of the published fleet: one frozen value, which each source of change replaces with a new one."""

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
"""The origin of a fleet's files: the disk, the saved state, an entry of the history, or the leader."""


@dataclass(frozen=True, slots=True)
class PickerPlace:
    """The picker address that the proxies of a fleet use."""

    address: Address | None = None
    """The picker address of this process; None if the fleet defines it."""
    withheld: bool = False
    """Whether proxies get no address, because another process uses it or no picker is started there."""
    key: str = ""
    """The key for picker requests that this process has created; empty if the fleet has another key or none."""


@dataclass(frozen=True, slots=True)
class FleetInputs:
    """All inputs of the published fleet."""

    loaded: Loaded | None = None
    """The fleet as it was read; None before the first successful read."""
    origin: Origin = "files"
    """The origin of the fleet's files."""
    discovered: Discovered = field(default_factory=Discovered)
    """The newest discovery answers."""
    baseline: Discovered = field(default_factory=Discovered)
    """The answers that the first published fleet is compared with."""
    decisions: LoopOutput = field(default_factory=LoopOutput)
    """The weights and ejections from the control loop."""
    overrides: Overrides = ()
    """The operators' overrides, including expired overrides that have not been removed yet."""
    rollouts: Rollouts = ()
    """The state of each rollout."""
    drains: Since = field(default_factory=dict)
    """Maps each (pool, replica) pair to the time at which its drain began, in seconds since the epoch, as saved or as
    reported by the leader.

    These drains apply to the next publication. Later publications continue from the composed drains.
    """
    picker: PickerPlace = field(default_factory=PickerPlace)
    """The picker address for the proxies."""
    traffic_log: Address | None = None
    """The address for the proxies' traffic log; None if nothing can receive it."""

    @property
    def topology(self) -> Topology | None:
        """The fleet in the files, without discovered replicas; None before the first successful read."""
        return self.loaded.compiled.topology if self.loaded else None

    def composes_like(self, before: FleetInputs) -> bool:
        """Return whether only notes about rollouts differ, so that all proxies get the same configuration."""
        topology = self.topology
        if self.rollouts == before.rollouts or topology is None or replace(self, rollouts=before.rollouts) != before:
            return False
        return moving.splits(self.rollouts, topology) == moving.splits(before.rollouts, topology)


class Places(Protocol):
    """The addresses of this process that a fleet's proxies use. The methods may open sockets."""

    def picker(self, topology: Topology) -> PickerPlace:
        """Return the picker address for the proxies of this fleet."""

    def picker_key(self, topology: Topology) -> str:
        """Return `PickerPlace.key` of this fleet, without opening a socket."""

    def traffic_log(self, topology: Topology) -> Address | None:
        """Return the address for the traffic log of this fleet's proxies; None if nothing can receive it."""

"""The inputs from which a process's parts are built."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lbctl.control.loop_output import LoopOutput
from lbctl.control.overrides import Overrides
from lbctl.control.rollouts import Rollouts
from lbctl.runtime.clock import SteadyClock
from lbctl.serve.api.endpoints import Endpoints
from lbctl.serve.fleet.history import RestoredHistory
from lbctl.serve.fleet.reader import Writers
from lbctl.serve.ha.clock import FleetClock
from lbctl.serve.metrics.instruments import Metrics
from lbctl.serve.settings import Options
from lbctl.serve.telemetry.saving import saved_loop_output
from lbctl.store.lease import Authority
from lbctl.store.records import SavedFleet
from lbctl.store.saved import SavedState
from lbctl.store.signed_store import SignedStore
from lbctl.xds.protocol.node_status import NodeStatus


@dataclass(frozen=True, slots=True)
class RestoredState:
    """The state saved by an earlier process."""

    fleet: SavedFleet | None = None
    """The last valid fleet; None if none was saved."""
    drains: Mapping[tuple[str, str], float] | None = None
    """Maps each (pool, replica) pair to the time at which its drain began, in seconds since the epoch; None if no
    drains were saved."""
    output: LoopOutput = field(default_factory=LoopOutput)
    """The weights and ejections most recently published by the control loop."""
    overrides: Overrides = ()
    """The operators' overrides."""
    rollouts: Rollouts = ()
    """The state of each rollout."""
    history: RestoredHistory = field(default_factory=RestoredHistory)
    """The previously published fleets, and the active rollback."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The settings of a process that is one of several members of a control plane."""

    name: str
    """The member's name."""
    store: SignedStore
    """Store shared by all members."""
    ttl: float
    """Duration of the lease in seconds."""
    authority: Authority
    """Whether this member may currently make decisions and act."""
    clock: FleetClock = field(default_factory=lambda: FleetClock(SteadyClock().now))
    """The clock shared by all members."""
    marker: Path | None = None
    """File that marks this machine as a member; None if membership is not stored."""

    @property
    def writers(self) -> Writers:
        """The possible writers of the stored data."""
        return "anybody" if self.store.keys.accepts_unsigned else "members"


@dataclass(frozen=True, slots=True)
class Inputs:
    """A process's inputs, which exist before its parts are built."""

    options: Options
    """The command's options."""
    endpoints: Endpoints
    """The process's sockets, and its fleet's settings once it has a fleet."""
    metrics: Metrics
    """The control plane's own metrics."""
    nodes: NodeStatus
    """Versions that the Envoys have acknowledged and rejected."""
    state: SavedState
    """The persistent state."""
    restored: RestoredState
    """The state saved by an earlier process."""
    shared: Shared | None = None
    """The settings of one of several members; None if this is the only process."""
    clock: SteadyClock = field(default_factory=SteadyClock)
    """The clock used if this process is the only member."""

    @property
    def now(self) -> Callable[[], float]:
        """The clock for decisions, in seconds since the epoch; if there are several members, their common clock."""
        return self.shared.clock.now if self.shared else self.clock.now

    @property
    def authority(self) -> Authority:
        """Whether this process may currently make decisions and act."""
        return self.shared.authority if self.shared else Authority.unlimited()


async def restore(state: SavedState) -> RestoredState:
    """Load the state saved by an earlier process. Raises StoreError."""
    return RestoredState(
        await state.last_fleet(),
        await state.drains(),
        await saved_loop_output(state, time.time()),
        await state.overrides(),
        await state.rollouts(),
        RestoredHistory(await state.history(), await state.rollback()),
    )

"""The complete state of the control loop. `step` returns a new State and never modifies the old one.

A weight is stored as a multiplier of the capacity, so that the decision remains valid after a reload that changes the
capacity. Every number behind a weight is kept here until the next observation, so that `decisions` can read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lbctl.control.effects import Mode
from lbctl.control.health import DeepHealth, HealthRules, ProgressWatch
from lbctl.control.inputs import NEVER, Observation
from lbctl.control.weighting.strategy import WHOLE, Estimate, MultiplierParts, Peers, Proposal, new_tuple
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.weight import Weight


class WeightTrajectory(NamedTuple):
    """How a replica's weight moves towards its goal. The same object is reused while the weight does not change."""

    multiplier: float = 1.0
    """The current multiplier of the capacity, which changes in bounded steps."""
    parts: MultiplierParts = WHOLE
    moved_at: float = NEVER
    """The time at which `multiplier` last changed, in seconds."""
    decided: float = 1.0
    """The last decided multiplier, which is sent to the proxies."""
    decided_parts: MultiplierParts = WHOLE


class ReplicaState(NamedTuple):
    """The control loop's state for one replica.

    It is a named tuple for the reason given in `weighting.strategy.Estimate`.
    """

    replica: Replica
    """The replica as defined by the files and discovery."""
    peers: Peers
    """The replicas against which the replica's speed is compared."""
    observation: Observation | None
    """The newest observation, or None before the first observation."""
    health: DeepHealth
    """The deep health check's verdict."""
    progress_watch: ProgressWatch
    """The time since which the replica has not completed any work."""
    proposal: Proposal
    """The strategy's proposal."""
    fresh: bool = False
    """Whether `observation` is newer than `stale_after`."""
    proposed_at: float = NEVER
    """Time of the last decision that had evidence for a proposal, in seconds."""
    goal: float = 1.0
    """Target multiplier, based on the replica's signals and health."""
    trajectory: WeightTrajectory = WeightTrajectory()
    """Movement of the replica's weight towards the goal."""
    since: float = NEVER
    """The time at which the replica joined the pool, in seconds."""

    def after_decision(
        self,
        observation: Observation | None,
        fresh: bool,
        health: DeepHealth,
        progress_watch: ProgressWatch,
        proposal: Proposal,
        proposed_at: float,
        goal: float,
        trajectory: WeightTrajectory,
    ) -> ReplicaState:
        """Return the same replica with the results of a decision. (`_replace` takes four times as long.)"""
        return new_tuple(
            ReplicaState,
            (
                self.replica,
                self.peers,
                observation,
                health,
                progress_watch,
                proposal,
                fresh,
                proposed_at,
                goal,
                trajectory,
                self.since,
            ),
        )


@dataclass(frozen=True, slots=True)
class PoolState:
    """The control loop's state for one pool."""

    pool: Pool
    """The pool as defined by the files and discovery."""
    rules: HealthRules
    """The limits on changes to the pool's weights."""
    replicas: tuple[ReplicaState, ...]
    """The replicas, in the pool's order."""
    index: Mapping[str, int]
    """Maps each replica name to its index in `replicas`."""
    mode: Mode = "acting"
    """Whether the pool's weights follow the signals."""
    mode_since: float = NEVER
    """The time at which `mode` began, in seconds."""
    mode_reason: str = ""
    """The reason why the mode is not `acting`, or an empty string if it is."""
    freeze_reason: str | None = None
    """The reason why an operator has frozen the pool, or None while it is not frozen."""
    decided_at: float = NEVER
    """The time at which the last decision was made, in seconds."""
    ejected: frozenset[str] = frozenset()
    """Replicas that proxies or active health checks have ejected."""
    suspected: frozenset[str] = frozenset()
    """Replicas whose engines have stopped, according to the picker."""


@dataclass(frozen=True, slots=True)
class State:
    """The control loop's state for all pools."""

    pools: Mapping[str, PoolState] = field(default_factory=dict)
    """Maps each pool name to the pool's state, for pools with telemetry."""
    now: float = NEVER
    """The time of the newest event, in seconds."""


def peers_of(replica: Replica) -> Peers:
    """Return a key shared by replicas that should be equally fast for their capacity.

    Replicas with the same GPUs share a key. If no GPU is set, replicas with the same capacity share a key.
    """
    return (replica.gpu, replica.gpu_count) if replica.gpu is not None else (replica.capacity,)


def new_replica_state(replica: Replica, multiplier: float, now: float, parts: MultiplierParts = WHOLE) -> ReplicaState:
    """Return the state of a replica that joins at `now` (seconds) with this capacity multiplier."""
    proposal = Proposal(Estimate(), None)
    state = ReplicaState(replica, peers_of(replica), None, DeepHealth(), ProgressWatch(), proposal, since=now)
    return state._replace(trajectory=WeightTrajectory(multiplier, parts, NEVER, multiplier, parts))


def weights(state: PoolState) -> dict[str, Weight]:
    """Maps each replica to its last decided weight."""
    return {item.replica.name: weight(item) for item in state.replicas}


def weight(replica: ReplicaState) -> Weight:
    """This replica's last decided weight."""
    capacity, trajectory = replica.replica.capacity, replica.trajectory
    return Weight(
        capacity * trajectory.decided, capacity * trajectory.decided_parts.room, trajectory.decided_parts.speed
    )

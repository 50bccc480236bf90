"""Explains why a replica has its weight, with every number from its signals to the decided weight, and their ages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lbctl.control.effects import Mode, Verdict
from lbctl.control.state import PoolState, ReplicaState, State, weight
from lbctl.ir.weight import Weight
from lbctl.signals.merge import Signal


@dataclass(frozen=True, slots=True)
class Decision:
    """The steps by which a replica's weight is derived: signal → normalised → proposed → goal → limited → decided.

    `proposed`, `goal`, `limited` and `decided` are multiples of the capacity. Ages are in seconds, or None before the
    first sample.
    """

    pool: str
    replica: str
    strategy: str
    """The pool's weighting strategy."""
    mode: Mode
    """The current mode of the pool's weights."""
    mode_reason: str
    """The reason why the mode is not `acting`, or an empty string if it is."""
    capacity: float
    """The replica's capacity."""
    signals: Mapping[str, Signal]
    """Maps each signal name to the signal on which the decision is based."""
    age: float | None
    """Age of the newest sample, in seconds."""
    evidence_age: float | None
    """Age of the newest evidence of speed or load, in seconds."""
    signal: float | None
    """Speed or load divided by the capacity, comparable only within the pool."""
    normalised: float
    """The natural logarithm of `signal` relative to the upper median of its peers."""
    across: float
    """The natural logarithm of the peers' upper median relative to the pool's."""
    proposed: float | None
    """The strategy's proposal, or None without evidence."""
    goal: float
    """`proposed` after limiting it to the floor and ceiling, or the value required by health or staleness."""
    limited: float
    """The value after bounded steps towards `goal`."""
    decided: float
    """The value to publish, which is `limited` as of the last change beyond the deadband."""
    weight: Weight
    """The weight that results from `decided`, with its parts for speed and for room."""
    verdict: Verdict
    """The deep health check's verdict."""
    reasons: tuple[str, ...]
    """The reason why the replica is ejected or at the floor, and the reason for the strategy's proposal."""


def decisions(state: State, pool: str) -> tuple[Decision, ...]:
    """One decision per replica, in the pool's order. The result is empty for an unknown pool."""
    pool_state = state.pools.get(pool)
    return tuple(_decision(pool_state, item, state.now) for item in pool_state.replicas) if pool_state else ()


def _decision(pool: PoolState, replica: ReplicaState, now: float) -> Decision:
    proposal, observation, estimate = replica.proposal, replica.observation, replica.proposal.estimate
    return Decision(
        pool=pool.pool.name,
        replica=replica.replica.name,
        strategy=pool.pool.weighting.strategy,
        mode=pool.mode,
        mode_reason=pool.mode_reason,
        capacity=replica.replica.capacity,
        signals={**observation.signals.stale, **observation.signals.values} if observation else {},
        age=now - observation.at if observation else None,
        evidence_age=now - estimate.at if estimate.total else None,
        signal=proposal.signal,
        normalised=proposal.normalised,
        across=proposal.across,
        proposed=proposal.multiplier,
        goal=replica.goal,
        limited=replica.trajectory.decided if replica.health.is_suspected else replica.trajectory.multiplier,
        decided=replica.trajectory.decided,
        weight=weight(replica),
        verdict=replica.health.verdict,
        reasons=_reasons(pool, replica),
    )


def _reasons(pool: PoolState, replica: ReplicaState) -> tuple[str, ...]:
    reasons = replica.health.verdict_reasons
    if replica.observation is None and pool.pool.telemetry is not None:
        reasons += ("no sample yet",)
    elif replica.observation is not None and not replica.fresh:
        reasons += ("its samples are stale",)
    return (*reasons, *((replica.proposal.reason,) if replica.proposal.reason else ()))

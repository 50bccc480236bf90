"""Turns proposed weights into decided ones, within floor and ceiling, in bounded steps, and only beyond the deadband.

A multiplier changes at most once per interval and by at most `max_step`, so that a burst of observations does not cause
a burst of changes. A multiplier that lands exactly on the capacity, floor or ceiling becomes the decided value
regardless of the deadband, so that no weight remains slightly wrong forever.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lbctl.control.health import DeepHealth, ProgressWatch
from lbctl.control.inputs import Observation
from lbctl.control.state import PoolState, ReplicaState, WeightTrajectory
from lbctl.control.weighting.strategy import WHOLE, MultiplierParts, Proposal

_EARLY = 0.99
"""Fraction of the interval after which the next change is allowed, because observations do not arrive at exact
times."""


Assessment = tuple[Observation | None, bool, DeepHealth, ProgressWatch]
"""(newest observation, whether it is fresh, health before pool-wide limits, progress)"""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The limits on a pool's weights in one decision.

    Weights are fractions of the capacity, and times are in seconds.
    """

    now: float
    """The time of the decision."""
    move_interval: float
    """Minimum time between two changes to a weight."""
    evidence_ttl: float
    """Time for which a weight is kept after its last evidence."""
    floor: float
    """The lowest weight."""
    health_floor: float
    """The weight of an unhealthy replica."""
    ceiling: float
    """The highest weight."""
    max_step_up: float
    """Maximum increase per interval."""
    max_step_down: float
    """Maximum decrease per interval."""
    deadband: float
    """Smallest change that is published."""
    uses_proposals: bool
    """Whether weights follow the proposals. If not, `hold` or `to_capacity` applies."""
    hold: bool
    """Whether weights remain unchanged."""
    to_capacity: bool
    """Whether all weights return to the capacities."""

    @classmethod
    def of(cls, state: PoolState, now: float) -> StepLimits:
        """Return a pool's limits at this time."""
        rules = state.pool.weighting
        blind_for_long = state.mode == "blind" and now - state.mode_since >= state.rules.stale_after
        return cls(
            now=now,
            move_interval=state.rules.interval * _EARLY,
            evidence_ttl=state.rules.stale_after,
            floor=rules.floor / 100,
            health_floor=min(rules.floor / 100, 1.0),
            ceiling=rules.ceiling / 100,
            max_step_up=rules.max_step_up / 100,
            max_step_down=rules.max_step_down / 100,
            deadband=rules.deadband / 100,
            uses_proposals=state.mode == "acting",
            hold=state.mode in ("frozen", "held") or (state.mode == "blind" and not blind_for_long),
            to_capacity=blind_for_long,
        )

    def apply(
        self, before: ReplicaState, assessment: Assessment, health: DeepHealth, is_healthy: bool, proposal: Proposal
    ) -> ReplicaState:
        """Return the replica after this decision. `is_healthy` is the value in `health`."""
        observation, fresh, _, watch = assessment
        trajectory, goal, goal_parts = before.trajectory, proposal.multiplier, proposal.parts
        proposed_at = before.proposed_at if goal is None else self.now
        if goal is None or not self.uses_proposals or not is_healthy or not self.floor <= goal <= self.ceiling:
            goal, goal_parts = self._goal(before, health, proposal)
        multiplier, parts, _, decided, decided_parts = trajectory
        steady = (goal_parts is parts or goal_parts == parts) and (parts is decided_parts or parts == decided_parts)
        if health.is_suspected:  # the multiplier is kept, so that the replica returns with its weight
            trajectory = trajectory._replace(decided=self.health_floor, decided_parts=WHOLE)
        elif goal != multiplier or multiplier != decided or not steady:
            trajectory = self._next(trajectory, goal, goal_parts, health.phase == "out")
        return before.after_decision(observation, fresh, health, watch, proposal, proposed_at, goal, trajectory)

    def _goal(self, before: ReplicaState, health: DeepHealth, proposal: Proposal) -> tuple[float, MultiplierParts]:
        """The multiplier towards which the weight moves, or the current one if it does not move."""
        current = before.trajectory.multiplier, before.trajectory.parts
        if health.phase == "out":
            return self.health_floor, WHOLE
        if self.hold:
            return current
        if health.verdict == "floor":
            return self.health_floor, WHOLE
        if self.to_capacity:
            return 1.0, WHOLE
        if proposal.multiplier is not None:
            goal = min(max(proposal.multiplier, self.floor), self.ceiling)
            return goal, _interpolated(WHOLE, proposal.parts, 1.0, goal, proposal.multiplier)
        return current if self.now - before.proposed_at < self.evidence_ttl else (1.0, WHOLE)

    def _next(self, before: WeightTrajectory, goal: float, goal_parts: MultiplierParts, out: bool) -> WeightTrajectory:
        """Return the trajectory after a step, if one is due, with a new decided value if the step is large enough."""
        multiplier, parts, moved_at, decided, decided_parts = before
        if (goal != multiplier or goal_parts != parts) and (out or self.now - moved_at >= self.move_interval):
            multiplier = goal if out else min(max(goal, multiplier - self.max_step_down), multiplier + self.max_step_up)
            arrived = multiplier == goal
            parts = goal_parts if arrived else _interpolated(parts, goal_parts, before.multiplier, multiplier, goal)
            moved_at = self.now
        if self._is_beyond_deadband(before, multiplier, parts, goal):
            decided, decided_parts = multiplier, parts
        return WeightTrajectory(multiplier, parts, moved_at, decided, decided_parts)

    def _is_beyond_deadband(
        self, before: WeightTrajectory, multiplier: float, parts: MultiplierParts, goal: float
    ) -> bool:
        at_an_end = multiplier == goal and goal in (1.0, self.health_floor, self.ceiling)
        if at_an_end and (goal != before.decided or parts == WHOLE):
            return True
        change = max(abs(multiplier / before.decided - 1.0), abs(parts.speed / before.decided_parts.speed - 1.0))
        return change >= self.deadband


def _interpolated(
    begin: MultiplierParts, end: MultiplierParts, begin_at: float, at: float, end_at: float
) -> MultiplierParts:
    """The parts of the multiplier `at` between `begin_at` and `end_at`, which, as factors, move in step with it."""
    if begin == end or begin_at == end_at:
        return end
    progress = math.log(at / begin_at) / math.log(end_at / begin_at)
    return MultiplierParts(*(old * (new / old) ** progress for old, new in zip(begin, end, strict=True)))

"""From what is wished to what is sent: clamped, in bounded steps, and told only beyond the deadband.

A multiplier moves at most once an interval and by `max_step`, so that no burst of looks makes a burst of moves. What has
come back to exactly the capacity is told whatever the deadband says: nothing stays a little wrong for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.control.state import PoolState, Track
from lbctl.control.weighting.strategy import Wish

_EARLY = 0.99
"""Part of the interval after which the next move may come: looks are not to the microsecond."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Parts of the capacity; seconds. `pause`: between two moves. `keep`: for so long a weight outlives its evidence.
    `window`: of the ramp. `still`: no weight moves. `home`: all go back to their capacity."""

    now: float
    pause: float
    keep: float
    window: float
    floor: float
    ceiling: float
    up: float
    down: float
    deadband: float
    still: bool
    home: bool

    @classmethod
    def of(cls, state: PoolState, now: float) -> Steps:
        rules, telemetry = state.pool.weighting, state.pool.telemetry
        ramp = state.pool.slow_start
        blind_for_long = state.mode == "blind" and now - state.mode_since >= state.rules.stale_after
        return cls(
            now=now,
            pause=(telemetry.interval / 1000 if telemetry else 5.0) * _EARLY,
            keep=state.rules.stale_after,
            window=ramp.window / 1000 if ramp else 0.0,
            floor=rules.floor / 100,
            ceiling=rules.ceiling / 100,
            up=rules.max_step_up / 100,
            down=rules.max_step_down / 100,
            deadband=rules.deadband / 100,
            still=state.mode in ("frozen", "held") or (state.mode == "blind" and not blind_for_long),
            home=blind_for_long,
        )


def moved(steps: Steps, track: Track, wish: Wish) -> Track:
    """The track after this decision."""
    known_at = steps.now if wish.multiplier is not None else track.known_at
    phase = track.health.phase
    if phase == "out":
        floor = min(steps.floor, 1.0)
        return track._replace(
            wish=wish, known_at=known_at, goal=floor, multiplier=floor, sent=floor,
            moved_at=steps.now if track.multiplier != floor else track.moved_at,
        )  # fmt: skip
    goal = _goal(steps, track, wish)
    multiplier, moved_at = track.multiplier, track.moved_at
    if goal != multiplier and steps.now - moved_at >= steps.pause:
        multiplier = min(max(goal, multiplier - steps.down), multiplier + steps.up)
        moved_at = steps.now
    sent = _sent(steps, track.sent, multiplier, goal)
    return Track(
        track.replica, track.peers, track.seen, track.health, wish, track.fresh, known_at, goal, multiplier, moved_at,
        sent, _ramping(steps, track.joined_at),
    )  # fmt: skip


def _goal(steps: Steps, track: Track, wish: Wish) -> float:
    """Where the multiplier is going: to where it is, if it stays."""
    if steps.still:
        return track.multiplier
    if track.health.verdict == "floor":
        return min(steps.floor, 1.0)
    if steps.home:
        return 1.0
    if wish.multiplier is not None:
        return min(max(wish.multiplier, steps.floor), steps.ceiling)
    if steps.now - track.known_at < steps.keep:
        return track.multiplier
    return 1.0


def _sent(steps: Steps, sent: float, multiplier: float, goal: float) -> float:
    if multiplier == sent:
        return sent
    arrived = multiplier == goal and goal in (1.0, steps.floor)
    return multiplier if arrived or abs(multiplier / sent - 1.0) >= steps.deadband else sent


def _ramping(steps: Steps, joined_at: float | None) -> float | None:
    return joined_at if joined_at is not None and steps.now - joined_at < steps.window else None

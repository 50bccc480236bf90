"""From what is wished to what is sent: clamped, in bounded steps, and told only beyond the deadband.

A multiplier moves at most once an interval and by `max_step`, so that no burst of looks makes a burst of moves. What
has arrived at the capacity, the floor or the ceiling is told whatever the deadband says: nothing stays a little wrong
for ever.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lbctl.control.health import Health, Pulse
from lbctl.control.inputs import Seen
from lbctl.control.state import Course, PoolState, Track
from lbctl.control.weighting.strategy import WHOLE, Parts, Wish, made

_EARLY = 0.99
"""Part of the interval after which the next move may come: looks are not to the microsecond."""


Look = tuple[Seen | None, bool, Health, Pulse]
"""(the newest that is known of it, whether that is fresh, health before the pool has its say, pulse)"""


@dataclass(frozen=True, slots=True)
class Steps:
    """Parts of the capacity; seconds. `pause`: between two moves. `keep`: for so long a weight outlives its evidence.
    `least`: where ill health brings it. `window`: of the ramp. `acts`: weights follow their evidence; else they stay
    `still`, or all go `home` to their capacity."""

    now: float
    pause: float
    keep: float
    window: float
    floor: float
    least: float
    ceiling: float
    up: float
    down: float
    deadband: float
    acts: bool
    still: bool
    home: bool

    @classmethod
    def of(cls, state: PoolState, now: float) -> Steps:
        rules, ramp = state.pool.weighting, state.pool.slow_start
        blind_for_long = state.mode == "blind" and now - state.mode_since >= state.rules.stale_after
        return cls(
            now=now,
            pause=state.rules.interval * _EARLY,
            keep=state.rules.stale_after,
            window=ramp.window / 1000 if ramp else 0.0,
            floor=rules.floor / 100,
            least=min(rules.floor / 100, 1.0),
            ceiling=rules.ceiling / 100,
            up=rules.max_step_up / 100,
            down=rules.max_step_down / 100,
            deadband=rules.deadband / 100,
            acts=state.mode == "acting",
            still=state.mode in ("frozen", "held") or (state.mode == "blind" and not blind_for_long),
            home=blind_for_long,
        )

    def moved(self, was: Track, look: Look, health: Health, wish: Wish) -> Track:
        """The track after this decision."""
        seen, fresh, _, pulse = look
        replica, peers, _, _, _, _, _, known_at, _, course, joined_at, since = was
        goal, aim = wish.multiplier, wish.parts
        if goal is not None:
            known_at = self.now
        if goal is None or not self.acts or not health.well or not self.floor <= goal <= self.ceiling:
            goal, aim = self._goal(was, health, wish)
        multiplier, parts, _, sent, sent_parts = course
        steady = (aim is parts or aim == parts) and (parts is sent_parts or parts == sent_parts)
        if goal != multiplier or multiplier != sent or not steady:
            course = self._next(course, goal, aim, health.phase == "out")
        if joined_at is not None and self.now - joined_at >= self.window:
            joined_at = None
        track = (replica, peers, seen, health, pulse, wish, fresh, known_at, goal, course, joined_at, since)
        return made(Track, track)

    def _goal(self, was: Track, health: Health, wish: Wish) -> tuple[float, Parts]:
        """Where the multiplier is going: to where it is, if it stays."""
        here = was.course.multiplier, was.course.parts
        if health.phase == "out":
            return self.least, WHOLE
        if self.still:
            return here
        if health.verdict == "floor":
            return self.least, WHOLE
        if self.home:
            return 1.0, WHOLE
        if wish.multiplier is not None:
            goal = min(max(wish.multiplier, self.floor), self.ceiling)
            return goal, _towards(WHOLE, wish.parts, 1.0, goal, wish.multiplier)
        return here if self.now - was.known_at < self.keep else (1.0, WHOLE)

    def _next(self, was: Course, goal: float, aim: Parts, out: bool) -> Course:
        """A step on the way, where one is due, and told where it is worth it."""
        multiplier, parts, moved_at, sent, sent_parts = was
        if (goal != multiplier or aim != parts) and (out or self.now - moved_at >= self.pause):
            multiplier = goal if out else min(max(goal, multiplier - self.down), multiplier + self.up)
            parts = aim if multiplier == goal else _towards(parts, aim, was.multiplier, multiplier, goal)
            moved_at = self.now
        if self._is_worth(was, multiplier, parts, goal):
            sent, sent_parts = multiplier, parts
        return Course(multiplier, parts, moved_at, sent, sent_parts)

    def _is_worth(self, was: Course, multiplier: float, parts: Parts, goal: float) -> bool:
        """Whether it is told."""
        if multiplier == goal and goal in (1.0, self.least, self.ceiling) and (goal != was.sent or parts == WHOLE):
            return True
        moved = max(abs(multiplier / was.sent - 1.0), abs(parts.speed / was.sent_parts.speed - 1.0))
        return moved >= self.deadband


def _towards(begin: Parts, end: Parts, begun: float, here: float, goal: float) -> Parts:
    """The parts of the multiplier `here`, on the way from `begun` to `goal`: they move in step with it, as factors."""
    if begin == end or begun == goal:
        return end
    way = math.log(here / begun) / math.log(goal / begun)
    return Parts(*(old * (new / old) ** way for old, new in zip(begin, end, strict=True)))

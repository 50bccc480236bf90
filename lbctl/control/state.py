"""All that the control loop knows. `step` makes a new State; nothing in an old one changes.

A weight is kept as a multiplier of the capacity, so that a reload which changes a capacity leaves the decision
standing. Every number that led to a weight stays here until the next look: `decisions` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lbctl.control.effects import Mode
from lbctl.control.health import Health, Pulse, Rules
from lbctl.control.inputs import NEVER, Seen
from lbctl.control.weighting.strategy import WHOLE, Estimate, Parts, Peers, Wish
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.weight import Weight


class Course(NamedTuple):
    """`multiplier`: of the capacity, in bounded steps towards the goal; `sent`: what of it the proxies were last told;
    `parts`, `sent_parts`: of them. `moved_at`: of `multiplier`. It stays the same object while nothing moves."""

    multiplier: float = 1.0
    parts: Parts = WHOLE
    moved_at: float = NEVER
    sent: float = 1.0
    sent_parts: Parts = WHOLE


class Track(NamedTuple):
    """One replica (a named tuple: see `weighting.strategy.Estimate`). `goal`: what its signals and health ask for;
    `course`: the way there. `joined_at`: since when it ramps. `fresh`: its samples are. `known_at`: of the last
    decision that had evidence; `since`: since when it is there."""

    replica: Replica
    peers: Peers
    seen: Seen | None
    health: Health
    pulse: Pulse
    wish: Wish
    fresh: bool = False
    known_at: float = NEVER
    goal: float = 1.0
    course: Course = Course()
    joined_at: float | None = None
    since: float = NEVER


@dataclass(frozen=True, slots=True)
class PoolState:
    """`tracks` in the order of the pool's replicas. `held`: an operator's reason, None where nobody holds it.
    `decided_at`: of the last decision; `ramps`: what was last told of them; `mode_since`: of `mode`."""

    pool: Pool
    rules: Rules
    tracks: tuple[Track, ...]
    index: Mapping[str, int]
    mode: Mode = "acting"
    mode_since: float = NEVER
    mode_words: str = ""
    held: str | None = None
    decided_at: float = NEVER
    ramps: Mapping[str, float] = field(default_factory=dict)
    ejected: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class State:
    """`now`: of the newest event."""

    pools: Mapping[str, PoolState] = field(default_factory=dict)
    now: float = NEVER


def peers_of(replica: Replica) -> Peers:
    """The same for replicas that should be equally fast for their capacity: those with the same GPUs; where no GPU is
    named, those with the same capacity."""
    return (replica.gpu, replica.gpu_count) if replica.gpu is not None else (replica.capacity,)


def new_track(replica: Replica, multiplier: float, joined_at: float | None, now: float, parts: Parts = WHOLE) -> Track:
    wish = Wish(Estimate(), None)
    track = Track(replica, peers_of(replica), None, Health(), Pulse(), wish, since=now)
    return track._replace(course=Course(multiplier, parts, NEVER, multiplier, parts), joined_at=joined_at)


def weights(state: PoolState) -> dict[str, Weight]:
    """Replica → weight as it was last sent."""
    return {item.replica.name: weight(item) for item in state.tracks}


def weight(track: Track) -> Weight:
    """As it was last sent."""
    capacity, course = track.replica.capacity, track.course
    return Weight(capacity * course.sent, capacity * course.sent_parts.room, course.sent_parts.speed)


def out(state: PoolState) -> frozenset[str]:
    """The replicas that deep health has taken out."""
    return frozenset(item.replica.name for item in state.tracks if item.health.phase == "out")

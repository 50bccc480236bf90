"""The interface of a weighting strategy: a pure function from observations of a pool's replicas to proposed weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from lbctl.control.inputs import NEVER, Observation
from lbctl.control.weighting.step_times import Sums
from lbctl.ir.pools import Pool, Replica
from lbctl.signals.derive import Evidence

Peers = tuple[str, int] | tuple[float]
"""(GPU, count), or (capacity,) if no GPU is set. Replicas with equal keys should be equally fast."""


class Unsteady(NamedTuple):
    """How the speed of a replica changes from sample to sample. Speeds are relative to the reference engine."""

    last: float
    """The speed according to the newest evidence alone."""
    short: float
    """The speed over the last few samples."""
    variance: float
    """Variance of the natural logarithm of `last`, calculated as half the mean square of its changes (von Neumann
    1941), which is hardly affected by drift. The initial value is an assumption."""
    away: bool = False
    """Whether `short` has fallen below the peers' speed and has not caught up again."""
    turns: float = 0.0
    """Number of changes to `away`, where older changes count less."""
    held: bool = False
    """Whether `away` has changed so often that the replica is held at its capacity."""
    gap: float = 0.0
    """The time between the last two samples, in units of `smoothing`."""
    samples: float = math.inf
    """The decayed number of samples, or infinity if it is unknown because the speed was steady before."""


class Estimate(NamedTuple):
    """A strategy's state for one replica.

    It is a named tuple because ten thousand are created for every observation, and frozen dataclasses take four times
    as long to create.
    """

    expected: float = 0.0
    """The decayed sum of the seconds that the reference engine would have taken."""
    took: float = 0.0
    """The decayed sum of the measured seconds, so that `expected / took` is the speed. For `composite`, it is the
    smoothed load."""
    total: float = 0.0
    """The decayed number of tokens or executions behind the estimate."""
    at: float = NEVER
    """The time of the newest evidence, in seconds."""
    acting: bool = False
    """Whether the deviation from the peers is outside its band."""
    across: bool = False
    """Whether the deviation from other GPU types is outside its band."""
    kind: type[Evidence] | None = None
    """The kind of evidence. Estimates of different kinds are not compared."""
    unsteady: Unsteady | None = None
    """Changes in the replica's speed, or None if it hardly changes."""
    sums: Sums | None = None
    """The sums over the replica's steps, if the pool has several GPU types."""


Subject = tuple[Replica, Peers, Observation | None, Estimate, bool]
"""(replica, its peers, newest observation, previous estimate, whether it counts because it is in and its samples are
fresh)"""


class MultiplierParts(NamedTuple):
    """The factors of a multiplier that have a known cause. The remainder has another cause."""

    speed: float = 1.0
    """The measured speed."""
    room: float = 1.0
    """The factor that corrects the capacity."""


WHOLE = MultiplierParts()
"""Neutral factors, for a multiplier that is not due to speed or capacity."""


class Proposal(NamedTuple):
    """A strategy's proposal for one replica."""

    estimate: Estimate
    """The strategy's measurements, which are passed to its next call."""
    multiplier: float | None
    """The proposed multiplier of the capacity, or None without evidence."""
    signal: float | None = None
    """The measured speed or load, divided by the capacity."""
    normalised: float = 0.0
    """The natural logarithm of `signal` relative to the peers."""
    across: float = 0.0
    """The natural logarithm of the peers' signal relative to the pool's."""
    reason: str = ""
    """Human-readable explanation of the proposal."""
    slow: bool = False
    """Whether the replica is slower than its band allows."""
    parts: MultiplierParts = WHOLE


new_tuple = tuple.__new__
"""`new_tuple(Proposal, (…))` creates a named tuple of all fields in order. Calling the class would run Python code for
each replica, which would take a tenth of the time spent on an observation."""
Strategy = Callable[[Pool, Sequence[Subject], float, float], "list[Proposal]"]
"""Maps (pool, replicas, seconds after which evidence is stale, current time in seconds) to one proposal for each
replica, in the same order."""

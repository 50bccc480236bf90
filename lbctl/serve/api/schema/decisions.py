"""`GET /api/v1/decisions`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lbctl.serve.api.schema.status import Override


@dataclass(frozen=True, slots=True)
class DecisionSignal:
    """A signal that a decision was made from."""

    value: float
    """The value."""
    unit: str
    """The unit."""
    age: float
    """Seconds since it was read."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Which proxies have the published version."""

    proxies: int
    """How many proxies should have it."""
    have_it: int
    """How many have accepted it."""
    waiting: tuple[str, ...]
    """The nodes that have not."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Every number between a replica's signals and its weight in the proxies."""

    pool: str
    """The pool."""
    replica: str
    """The replica."""
    strategy: str
    """The weighting strategy."""
    mode: str
    """The mode of the pool, as in `PoolControl`."""
    mode_words: str | None
    """Why the mode is not `acting`; None while it is."""
    capacity: float
    """The capacity of the replica."""
    signals: Mapping[str, DecisionSignal]
    """Name → signal, with those that are stale."""
    age: float | None
    """Seconds since the last sample; None: there never was one."""
    evidence_age: float | None
    """Seconds since the evidence that the estimate rests on; None without evidence."""
    speed: float | None
    """Speed per capacity, comparable within the pool alone; None without evidence and for `composite`."""
    load: float | None
    """Load per capacity, comparable within the pool alone; None without evidence and for other strategies."""
    normalised: float
    """The natural logarithm of speed or load against the upper median of its peers."""
    across_types: float
    """The natural logarithm of that of its GPU type against the pool's."""
    wished: float | None
    """The part of the capacity that the strategy asks for; None where it asks for nothing."""
    clamped: float
    """The same within floor and ceiling, or what health and staleness make of it."""
    damped: float
    """The same after bounded steps."""
    beyond_deadband: float
    """The same after the deadband: the part of the capacity that was decided."""
    decided: float
    """The weight that was decided, on the scale of capacities."""
    sent: float
    """The weight that is published: an operator's where one is held."""
    room: float
    """The part of the weight that is room."""
    of_peers_speed: float
    """The part of the weight that is speed, relative to its peers."""
    held: float
    """The factor that keeps the weight back."""
    share: float
    """Its part of the pool's requests, from 0 to 1."""
    quantised: Mapping[str, int]
    """Kind of proxy → the integer weight there. `kind name` where proxies of a kind differ; absent where the replica
    gets nothing new."""
    notes: tuple[str, ...]
    """Where a proxy's balancing does not follow the weight."""
    ramp: float
    """The factor of slow start by lbctl, from 0 to 1."""
    verdict: str
    """What deep health says: `in`, `floor` or `out`."""
    words: tuple[str, ...]
    """Why, and what is missing of its signals."""
    overrides: tuple[Override, ...]
    """Overrides about the replica or its pool."""
    acknowledged: Acknowledged
    """Which proxies have the published version."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """The answer of `/api/v1/decisions`."""

    decisions: tuple[Decision, ...]
    """A row for each replica of each pool with telemetry."""

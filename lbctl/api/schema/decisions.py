"""`GET /api/v1/decisions`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lbctl.api.schema.status import Override


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
    sampled_by: str | None
    """The member of the control plane that has scraped the signals; None: the one that answers, or there is none."""
    age: float | None
    """Seconds since the last sample; None: there never was one."""
    evidence_age: float | None
    """Seconds since the evidence that the estimate rests on; None without evidence."""
    speed: float | None
    """Speed per capacity, comparable within the pool alone; None without evidence and for `composite`."""
    load: float | None
    """Load per capacity, comparable within the pool alone; None without evidence and for other strategies."""
    normalised: float
    """The natural logarithm of its speed or load, relative to the upper median of its peers."""
    across_types: float
    """The natural logarithm of the median of its GPU type, relative to that of the pool."""
    wished: float | None
    """The proposal of the strategy, as a factor of the capacity; None where it proposes nothing."""
    clamped: float
    """The factor within floor and ceiling, or the one that health and stale samples impose."""
    damped: float
    """The factor after the limits on the size of a step."""
    beyond_deadband: float
    """The factor after the deadband: the decided one."""
    decided: float
    """The decided weight, on the scale of capacities."""
    sent: float
    """The published weight: an operator's where there is an override."""
    room: float
    """The requests in flight that the replica should carry, relative to its peers, on the scale of capacities."""
    of_peers_speed: float
    """The factor of the weight for the measured speed, relative to replicas with the same GPU."""
    held: float
    """The factor of the weight that is neither room nor speed: a floor, a trial, a limited step or a ramp."""
    share: float
    """Its part of the pool's requests, from 0 to 1."""
    quantised: Mapping[str, int]
    """Kind of proxy → the integer weight there. `kind name` where proxies of a kind differ; absent where the replica
    gets nothing new."""
    notes: tuple[str, ...]
    """Where a proxy's balancing does not follow the weight."""
    ramp: float
    """The factor of slow start by lbctl, from 0 to 1: the lowest of all proxies that need it."""
    picker_ramp: float
    """The factor of slow start that the picker counts, from 0 to 1."""
    verdict: str
    """What deep health says: `in`, `floor` or `out`."""
    reasons: tuple[str, ...]
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

"""`GET /api/v1/picks`: the picker of this control plane, what it has decided, and samples of its decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lbctl.api.schema.values import Timestamp


@dataclass(frozen=True, slots=True)
class PickerStatus:
    """The process that picks replicas for the pools with `algorithm: pick`."""

    listens: str
    """The address of gRPC; HTTP is on the next port."""
    running: bool
    """Whether the process runs and has reported within 3 seconds."""
    alone: bool
    """Whether it is an `lbctl picker` that somebody else has started at the address."""
    since: Timestamp | None
    """When the process was started, also one that hangs; None while there is none."""
    starts: int
    """How many times it was started."""
    reason: str | None
    """Why it does not run; None while it does, and while it starts."""
    open: int
    """The number of picked requests that have not ended."""
    following: int
    """How many pickers get the tables of this control plane, with those on other machines."""


@dataclass(frozen=True, slots=True)
class PickedPool:
    """The decisions about one pool since the picker's process was started."""

    pool: str
    """The pool."""
    decisions: Mapping[str, int]
    """Reason → the number of decisions."""
    finished: int
    """The number of picked requests that have ended."""
    mean_seconds: float | None
    """How long a decision takes on average; None before the first."""
    cache_hits: Mapping[str, float]
    """Replica → the part of prompt tokens that its engine found in its prefix cache; absent where that is unknown."""


@dataclass(frozen=True, slots=True)
class PickSample:
    """One decision. Nothing in it was sent by a client."""

    at: Timestamp
    """When it was taken."""
    pool: str
    """The pool."""
    replica: str | None
    """The replica that was picked; None where none was."""
    reason: str
    """Why this one, as one word."""
    seconds: float
    """How long the decision took."""
    session: bool
    """Whether the request names a session."""
    blocks: int
    """The number of blocks of its prompt that were looked up."""
    tokens: float
    """The estimated length of its prompt."""
    proxy: str
    """The proxy that asked; empty where it does not say."""


@dataclass(frozen=True, slots=True)
class Picks:
    """The picker, its counts and samples of its decisions."""

    picker: PickerStatus | None
    """The process; None where no pool needs it."""
    pools: tuple[PickedPool, ...]
    """The pools with decisions, by name."""
    samples: tuple[PickSample, ...]
    """Samples of decisions, at most ten a second and the last 500, the oldest first."""

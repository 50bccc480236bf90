"""`GET` and `POST /api/v1/rollouts`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lbctl.serve.api.schema.values import Timestamp

RolloutAction = Literal["start", "promote", "pause", "resume", "set", "abort"]
RolloutPhase = Literal["waiting", "progressing", "paused", "promoted", "aborted", "superseded"]


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """One step of a rollout."""

    percent: float
    """The share of the target pool."""
    hold: float | None
    """Seconds until the next step, in the mode `timed`; None where somebody has to promote it."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """How far the rollout of one route is."""

    route: str
    """The route."""
    to: str
    """The pool that the traffic moves to."""
    mode: Literal["manual", "timed", "analysis"]
    """What ends a step. `analysis` is not executed yet."""
    phase: RolloutPhase
    """`waiting`: nobody has started it. `progressing`: a step is held. `paused`: the share stays. `promoted`: all steps
    are done. `aborted`: the split of the files holds again. `superseded`: the files have another split, which holds."""
    step: int
    """The number of the current step, from 1."""
    steps: tuple[RolloutStep, ...]
    """All steps."""
    percent: float | None
    """The current share of the target pool; None where the rollout does not decide the split."""
    split: Mapping[str, int]
    """Pool → its current share, relative to the others, as it would stand in the file."""
    since: Timestamp | None
    """When the current step or phase began."""
    next_at: Timestamp | None
    """When the current step ends by itself; None where somebody has to end it."""
    reason: str | None
    """Why somebody acted on it last; None where nobody gave a reason."""


@dataclass(frozen=True, slots=True)
class Rollouts:
    """The answer of `GET /api/v1/rollouts`."""

    rollouts: tuple[Rollout, ...]
    """The rollouts of the served fleet, by route."""


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """The body of `POST /api/v1/rollouts`."""

    route: str
    """The route."""
    action: RolloutAction
    """What to do. `set` needs `percent`."""
    percent: float | None = None
    """The share of the target pool, from 0 to 100; for `set` alone."""
    reason: str | None = None
    """Why; at most 200 characters are kept."""


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """The answer of `POST /api/v1/rollouts`."""

    rollout: Rollout
    """The rollout after the action."""

"""`GET` and `POST /api/v1/rollouts`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lbctl.api.schema.values import Timestamp

RolloutAction = Literal["start", "promote", "pause", "resume", "set", "abort"]
RolloutPhase = Literal["waiting", "progressing", "paused", "promoted", "aborted", "rolled_back", "superseded"]
RolloutVerdict = Literal["good", "bad", "inconclusive"]


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """One step of a rollout."""

    percent: float
    """The share of the target pool."""
    hold: float | None
    """Seconds until the next step at the earliest; None where somebody has to promote it."""


@dataclass(frozen=True, slots=True)
class RolloutCounts:
    """Requests of one side of a rollout, as the proxies have counted them."""

    requests: int
    """Requests that have ended."""
    errors: int
    """Those among them that failed: a status of 500 or more, or a connection that failed or broke."""
    rate: float | None
    """The share of errors, from 0 to 1; None without requests."""


@dataclass(frozen=True, slots=True)
class RolloutMetric:
    """The values of a latency or of a PromQL metric in one evaluation."""

    name: str
    """Its name in the file; of a latency what is measured and the percentile, such as `first_byte p95`."""
    new: float | None
    """The value of the target pool, of a latency in milliseconds; None where there is none."""
    old: float | None
    """The value of the other pools; None where there is none."""
    ratio: float | None
    """The first divided by the second; None where that is no number."""
    max_ratio: float
    """The largest ratio that is good."""
    verdict: RolloutVerdict
    """The verdict on this metric alone."""
    problem: str | None
    """Why there is no verdict; None where there is one."""


@dataclass(frozen=True, slots=True)
class RolloutEvaluation:
    """The verdict of the analysis on one interval, with its numbers."""

    at: Timestamp
    """When."""
    step: int
    """The number of the step, from 1."""
    verdict: RolloutVerdict
    """`good`: enough requests, and not worse than the other pools. `bad`: worse beyond chance. `inconclusive`: too
    little is known, which neither ends a step nor the rollout."""
    reason: str | None
    """Why it is not good; None where it is."""
    new: RolloutCounts
    """The target pool. An interval with too few requests is joined with the next one."""
    old: RolloutCounts
    """The other pools of the split together."""
    metrics: tuple[RolloutMetric, ...]
    """The latency, then the PromQL metrics by name; empty where the other pools get no requests at this step."""


@dataclass(frozen=True, slots=True)
class RolloutAnalysis:
    """The evidence of a rollout in the mode `analysis`."""

    waits_for: str | None
    """What keeps the step from ending besides its hold; None where nothing does, or where no step is held."""
    new: RolloutCounts
    """The target pool since the step began or was resumed."""
    old: RolloutCounts
    """The other pools since then."""
    failures: int
    """Bad evaluations in a row."""
    max_failures: int
    """So many in a row end or pause the rollout."""
    verdicts: Mapping[RolloutVerdict, int]
    """Verdict → how many evaluations of this rollout had it."""
    evaluations: tuple[RolloutEvaluation, ...]
    """The last ones, the oldest first."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """How far the rollout of one route is."""

    route: str
    """The route."""
    to: str
    """The pool that the traffic moves to."""
    mode: Literal["manual", "timed", "analysis"]
    """What ends a step: an operator, its hold, or its hold with good evaluations."""
    phase: RolloutPhase
    """`waiting`: it has not begun. `progressing`: a step is held. `paused`: the share stays. `promoted`: all steps are
    done. `aborted`: the split of the files holds again. `rolled_back`: the same, because the analysis has found the
    target pool bad, or the pool has no available replica. `superseded`: the files have another split, or another model
    of an old pool, and their split holds."""
    step: int
    """The number of the current step, from 1."""
    steps: tuple[RolloutStep, ...]
    """All steps."""
    percent: float | None
    """The current share of the target pool; None where the rollout does not decide the split."""
    split: Mapping[str, int]
    """Pool → its current share, relative to the others, as the file would have it."""
    since: Timestamp | None
    """When the current step or phase began."""
    next_at: Timestamp | None
    """When the current step ends by itself, at the earliest; None where somebody has to end it, and while the hold of
    the step is paused."""
    reason: str | None
    """Why somebody, or the analysis, acted on it last; None without a reason."""
    analysis: RolloutAnalysis | None
    """The evidence; None in the modes `manual` and `timed`."""
    held_by: str | None = None
    """Who holds the split of the route by hand, and why: it applies in place of that of the rollout. None where nobody
    does."""
    hold_waits_for: str | None = None
    """Why the hold of the current step is paused; None while it runs, and without a hold."""
    unavailable: str | None = None
    """Why the target pool has no available replica, so that the rollout does not move on; None where it has one, where
    an operator has allowed it, and after the end."""
    observed: float | None = None
    """The target's part of the last minute's requests to the pools of the split, from 0 to 1, as the proxies count
    them, those of other routes to these pools included; None without reported requests."""


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
    allow_unavailable: bool | None = None
    """Whether the rollout may go on without an available replica in the target pool, until it starts again."""


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """The answer of `POST /api/v1/rollouts`."""

    rollout: Rollout
    """The rollout after the action."""
    warnings: tuple[str, ...] = ()
    """What else is to be known: pools without an available replica, and files that are not served."""

"""Rollouts move a route's traffic to one pool step by step, and can be paused, resumed and aborted.

A rollout is identified by its route, its target pool, that pool's model, and its steps. A rollout's state applies to
the route until the split or the rollout itself changes in the files. While the rollout is running, a change to an old
pool's model also ends it, because earlier comparisons were with a different model. A step's hold runs only while a
proxy has applied the step. In `analysis` mode, a step ends after its hold if the evidence since the start of the step
is good, and the rollout ends after too many consecutive bad evaluations. In every mode, a step does not begin while the
target pool has no available replica, and a running rollout ends in that case unless an operator has allowed it to
continue. The functions are pure. Times are arguments, in seconds since the epoch.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import gcd
from typing import Literal

from lbctl.control.analysis import judge
from lbctl.control.analysis.evidence import AnalysisState, IntervalObservation
from lbctl.control.outages import NO_OUTAGES, OUTAGE_TIMEOUT, Outage, Outages
from lbctl.control.splits import MAX_SHARE, Shares, shares_of
from lbctl.ir.routes import Analysis, Rollout, Route
from lbctl.ir.topology import Topology

Phase = Literal["waiting", "progressing", "paused", "promoted", "aborted", "rolled_back", "superseded"]
"""waiting: the rollout has not started. progressing: a step is active. paused: the share does not change until an
operator resumes the rollout. promoted: all steps are complete, and the last share is kept. aborted: the split in the
files applies again. rolled_back: the split in the files applies again, because the verdict on the new pool was bad, or
the pool has no available replica. superseded: the files define another split, or other models for the old pools, so the
split in the files applies."""
PHASES: tuple[Phase, ...] = (
    "waiting", "progressing", "paused", "promoted", "aborted", "rolled_back", "superseded",
)  # fmt: skip
Action = Literal["start", "promote", "pause", "resume", "set", "abort"]
DEFAULT_ANALYSIS = Analysis(max_error_rate=1.0)
"""Criteria for `analysis` rollouts that do not define any criteria."""
_HUNDREDTHS = 10_000
_KEPT = 20
"""Number of earlier rollouts to keep per route, the same as the number of earlier fleets."""


@dataclass(frozen=True, slots=True)
class EndedRollout:
    """End state of a route's earlier rollout. The fields are as in RolloutState."""

    key: str
    """Identity of the rollout, derived from its target, the target's model and the steps."""
    base: Shares
    """The shares in the files when the rollout began."""
    phase: Phase
    """The rollout's last phase."""
    step: int
    """The index of the rollout's last step."""
    percent: float
    """The target's share, in percent, when the rollout ended."""
    reason: str = ""
    """The reason why the rollout ended, or an empty string if none was given."""


@dataclass(frozen=True, slots=True)
class RolloutState:
    """The state of a route's rollout. Times are in seconds since the epoch."""

    route: str
    key: str
    """Digest of the target pool, the pool's model and the steps."""
    base: Shares
    """The split in the files when the rollout began."""
    phase: Phase = "waiting"
    """The phase of the whole rollout."""
    step: int = 0
    """Index of the current step."""
    percent: float = 0.0
    """The target pool's current share."""
    since: float = 0.0
    """The time at which the current step or phase began."""
    elapsed: float = 0.0
    """Seconds of the current step's hold that had elapsed before the hold was paused."""
    held_since: float | None = None
    """The time since which the hold has been running, or None while it is paused."""
    reason: str = ""
    """The reason why an operator or the analysis paused, set or ended the rollout."""
    analysis: AnalysisState = AnalysisState()
    """The evidence, if the mode is `analysis`."""
    models: str = ""
    """Digest of the old pools' models, or an empty string if unknown."""
    earlier: tuple[EndedRollout, ...] = ()
    """The route's earlier rollouts, newest last."""
    allows_unavailable: bool = False
    """Whether an operator has allowed the rollout to continue while the target pool has no available replica."""

    @property
    def runs(self) -> bool:
        """Whether the rollout has begun but has not ended."""
        return self.phase in ("progressing", "paused")

    @property
    def moves(self) -> bool:
        """Whether the rollout determines the split of its route."""
        return self.runs or self.phase == "promoted"


Rollouts = tuple[RolloutState, ...]


def shares_at(base: Shares, to: str, percent: float) -> Shares:
    """Return the split in which `to` has this share and the other pools keep their proportions.

    If the other pools have no shares, `to` gets all requests.
    """
    others = {pool: share for pool, share in base if pool != to}
    part, total = round(percent * _HUNDREDTHS / 100), sum(others.values())
    if not total:
        return tuple((pool, int(pool == to)) for pool, _ in base)
    shares = {pool: share * (_HUNDREDTHS - part) for pool, share in others.items()} | {to: total * part}
    return tuple(sorted(_reduced(shares).items()))


def _reduced(shares: dict[str, int]) -> dict[str, int]:
    """Return the smallest integers with the same proportions; rounded if they are too large for a fleet."""
    divisor = gcd(*shares.values())
    largest = max(shares.values()) // divisor
    scale = 1 if largest <= MAX_SHARE else MAX_SHARE / largest
    return {pool: int(share // divisor * scale) for pool, share in shares.items()}


def splits(states: Rollouts, topology: Topology) -> dict[str, Shares]:
    """Map each route to the split determined by its rollout. `topology` contains the splits from the files."""
    return {
        state.route: shares_at(state.base, rollout.to, state.percent)
        for saved in states
        for route, rollout in _rollouts(topology, saved.route)
        if (state := _of_key(saved, key_of(route, rollout, topology))) is not None
        if state.moves and not _superseded_by(state, _files(route, rollout, topology))
    }


def key_of(route: Route, rollout: Rollout, topology: Topology) -> str:
    """Return the digest that identifies a rollout."""
    model = _models(topology, (rollout.to,))[rollout.to]
    steps = [(step.percent, step.hold) for step in rollout.steps]
    return _digest([route.name, rollout.to, model, steps])


def _models(topology: Topology, names: Collection[str]) -> dict[str, tuple[str, str | None] | None]:
    """Map each pool to the name and version of its model, or to None if it has no model."""
    pools = [item for item in topology.pools if item.name in names]
    return {item.name: (item.model.name, item.model.version) if item.model else None for item in pools}


def _digest(value: object) -> str:
    return blake2b(json.dumps(value).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class _Files:
    """A rollout's values in the files, in addition to its key."""

    base: Shares
    """The split of the route."""
    models: str
    """Digest of the old pools' models."""


def _files(route: Route, rollout: Rollout, topology: Topology) -> _Files:
    base = shares_of(route)
    old = _models(topology, {pool for pool, _ in base} - {rollout.to})
    return _Files(base, _digest(sorted(old.items())))


def _superseded_by(state: RolloutState, files: _Files) -> str:
    """Describe the change in the files that ends an otherwise unchanged rollout, or return "" if there is none."""
    if state.phase == "waiting":
        return ""
    if state.base != files.base:
        return "the files contain a different split"
    if state.runs and state.models not in ("", files.models):
        return "the files set a different model for an old pool"
    return ""


def reconcile(
    states: Rollouts,
    topology: Topology,
    now: float,
    outages: Outages = NO_OUTAGES,
    unchecked: Collection[str] = (),
) -> Rollouts:
    """Return the states of the rollouts in the current files. `unchecked` contains the pools not checked yet.

    A new rollout waits in `manual` mode, while its target pool is unchecked, and during an outage of that pool.
    Otherwise, it starts. An unchanged rollout continues. If an earlier rollout reappears in the files, for example
    after a rollback, it keeps its end state. A change to the split in the files ends an otherwise unchanged rollout,
    and a change to an old pool's model ends a running rollout.
    """
    by_route = {state.route: state for state in states}
    return tuple(
        _reconciled(by_route.get(route.name), route, rollout, topology, now, outages, rollout.to in unchecked)
        for route, rollout in _rollouts(topology)
    )


def _reconciled(
    state: RolloutState | None,
    route: Route,
    rollout: Rollout,
    topology: Topology,
    now: float,
    outages: Outages,
    is_unchecked: bool,
) -> RolloutState:
    key, files = key_of(route, rollout, topology), _files(route, rollout, topology)
    same = _of_key(state, key) if state is not None else None
    if same is None:
        earlier = _ends(state) if state is not None else ()
        new = RolloutState(route.name, key, files.base, since=now, models=files.models, earlier=earlier)
        outage = outage_of(files.base, rollout, outages)
        if rollout.mode != "manual" and outage is not None:
            return replace(new, reason=outage.reason)
        return new if rollout.mode == "manual" or is_unchecked else _at_step(new, rollout, 0, now)
    if same is not state:
        same = replace(same, since=now, reason=same.reason or "the state in which it ended before")
    reason = _superseded_by(same, files)
    same = replace(same, base=files.base, models=files.models)
    return replace(same, phase="superseded", since=now, held_since=None, reason=reason) if reason else same


def _of_key(state: RolloutState, key: str) -> RolloutState | None:
    """Return the route's rollout with this key, which is the current one or an earlier one in its end state."""
    if state.key == key:
        return state
    ended = next((item for item in state.earlier if item.key == key), None)
    if ended is None:
        return None
    earlier = tuple(item for item in _ends(state) if item.key != key)
    return RolloutState(
        state.route, key, ended.base, ended.phase, ended.step, ended.percent, reason=ended.reason, earlier=earlier
    )


def _ends(state: RolloutState) -> tuple[EndedRollout, ...]:
    """Return the route's earlier rollouts, including the current one, which is being replaced."""
    if state.phase == "waiting":
        return state.earlier
    phase: Phase = "superseded" if state.runs else state.phase
    reason = "another rollout replaced it" if state.runs else state.reason
    ended = EndedRollout(state.key, state.base, phase, state.step, state.percent, reason)
    return (*state.earlier, ended)[-_KEPT:]


def advance(
    states: Rollouts,
    topology: Topology,
    now: float,
    in_force: Collection[str],
    outages: Outages = NO_OUTAGES,
    unchecked: Collection[str] = (),
) -> Rollouts:
    """Return the states after automatic changes: starts, ends, and at most one step per rollout.

    `in_force` contains the routes whose current step has reached a proxy. The holds of all other routes are paused.
    `unchecked` contains the pools that have not been checked yet. Rollouts to these pools do not start.
    """
    rollouts = {route.name: rollout for route, rollout in _rollouts(topology)}
    return tuple(
        _ended(state, rollout, outages, now)
        or (state if state.phase == "waiting" and rollout.to in unchecked else None)
        or _advanced(state, rollout, state.route in in_force, unavailable(state, rollout, outages), now)
        for state in states
        if (rollout := rollouts.get(state.route)) is not None
    )


def pools_concerned(states: Rollouts, topology: Topology, acted_on: str = "") -> frozenset[str]:
    """Return the pools whose outages are relevant: pools of unfinished rollouts, and of the route `acted_on`."""
    return frozenset(
        pool
        for state in states
        if state.runs or state.phase == "waiting" or state.route == acted_on
        for pool in (*dict(state.base), *(rollout.to for _, rollout in _rollouts(topology, state.route)))
    )


def unavailable(state: RolloutState, rollout: Rollout, outages: Outages) -> Outage | None:
    """Return the outage of the target pool that is preventing the next step, or None if there is none."""
    return None if state.allows_unavailable else outage_of(state.base, rollout, outages)


def outage_of(base: Shares, rollout: Rollout, outages: Outages) -> Outage | None:
    """Return the target pool's outage, or None if it has none or the old pools also have one.

    If the old pools also have one, it makes no difference which of the pools gets the requests.
    """
    outage = outages.get(rollout.to)
    old = [outages.get(pool) for pool, share in base if share and pool != rollout.to]
    if outage is None or (old and all(item is not None and item.seen >= outage.seen for item in old)):
        return None
    return outage


def _ended(state: RolloutState, rollout: Rollout, outages: Outages, now: float) -> RolloutState | None:
    """Return the state of a running rollout that ends because of its target's outage, or None if it continues.

    A rollout that has just started automatically goes back to waiting immediately, because its target was unchecked
    when it started.
    """
    outage = unavailable(state, rollout, outages)
    if not state.runs or outage is None:
        return None
    if state.step == 0 and rollout.mode != "manual" and 0 <= outage.since - state.since < OUTAGE_TIMEOUT:
        return replace(state, phase="waiting", percent=0.0, since=now, held_since=None, reason=outage.reason)
    if outage.seen - outage.since < OUTAGE_TIMEOUT:
        return None
    return replace(state, phase="rolled_back", since=now, held_since=None, reason=outage.reason)


def _advanced(
    state: RolloutState, rollout: Rollout, is_in_force: bool, outage: Outage | None, now: float
) -> RolloutState:
    if state.phase == "waiting" and rollout.mode != "manual":
        if outage is not None:
            return state if state.reason else replace(state, reason=outage.reason)
        return _at_step(state, rollout, 0, now)
    if _hold(state, rollout) is None:
        return state
    if not is_in_force:
        return replace(state, elapsed=_elapsed(state, now), held_since=None)
    state = state if state.held_since is not None else replace(state, held_since=now)
    due = next_step(state, rollout)
    is_over = due is not None and due <= now and outage is None and not blocker(state, rollout, now)
    return _at_step(state, rollout, state.step + 1, now) if is_over else state


def next_step(state: RolloutState, rollout: Rollout) -> float | None:
    """Return the time at which the current step ends automatically; None if an operator ends it or its hold is paused.

    In `analysis` mode, a `blocker` delays the end.
    """
    hold = _hold(state, rollout)
    return None if hold is None or state.held_since is None else state.held_since + hold - state.elapsed


def waits_for_proxy(state: RolloutState, rollout: Rollout) -> bool:
    """Return whether the hold of the current step is paused because no proxy has applied the step."""
    return _hold(state, rollout) is not None and state.held_since is None


def step_id(state: RolloutState) -> str:
    """Return an ID for a rollout's current split, used by the members of a control plane."""
    return f"{state.route} {state.key} {state.step} {state.percent:g}"


def _hold(state: RolloutState, rollout: Rollout) -> float | None:
    """Return the number of seconds after which the current step ends, or None if only an operator can end it."""
    hold = rollout.steps[state.step].hold
    return None if state.phase != "progressing" or rollout.mode == "manual" or hold is None else hold / 1000


def _elapsed(state: RolloutState, now: float) -> float:
    """Return how much of the current step's hold has elapsed, in seconds."""
    return state.elapsed + (0.0 if state.held_since is None else now - state.held_since)


# ── The mode `analysis` ──────────────────────────────────────────────────────────────────────────────────────────────


def is_analysed(state: RolloutState, rollout: Rollout) -> bool:
    """Return whether the current step's pools are being compared."""
    return state.phase == "progressing" and rollout.mode == "analysis"


def blocker(state: RolloutState, rollout: Rollout, now: float) -> str:
    """Describe the evidence that the current step still needs, or return an empty string if the step may end."""
    if not is_analysed(state, rollout):
        return ""
    return judge.blocker(
        state.analysis,
        rollout.analysis or DEFAULT_ANALYSIS,
        state.step,
        state.since,
        has_old_share(state, rollout),
        now,
    )


def has_old_share(state: RolloutState, rollout: Rollout) -> bool:
    """Return whether the current split sends requests to the other pools."""
    shares = shares_at(state.base, rollout.to, state.percent)
    return any(share for pool, share in shares if pool != rollout.to)


def evaluate(state: RolloutState, rollout: Rollout, observation: IntervalObservation, now: float) -> RolloutState:
    """Return the state after evaluating one more interval of the current step."""
    criteria = rollout.analysis or DEFAULT_ANALYSIS
    evidence = judge.evaluate(state.analysis, observation, criteria, state.step, has_old_share(state, rollout), now)
    after = replace(state, analysis=evidence)
    if evidence.failures < criteria.failures:
        return after
    reason = f"{evidence.failures} bad evaluations in a row, the last one {judge.describe(evidence.evaluations[-1])}"
    if criteria.on_failure == "rollback":
        return replace(after, phase="rolled_back", since=now, held_since=None, reason=reason)
    return replace(_paused(after, now), reason=reason)


# ── Operators ────────────────────────────────────────────────────────────────────────────────────────────────────────


def act(
    state: RolloutState,
    rollout: Rollout,
    action: Action,
    now: float,
    percent: float = 0.0,
    outage: Outage | None = None,
    allow_unavailable: bool = False,
) -> RolloutState:
    """Return the rollout's state after an operator's action.

    Raises ValueError, with a message for users, if the action is not possible.

    `outage` is the target pool's outage. During an outage, any action that sends requests to the pool is rejected,
    unless `allow_unavailable` is true or has been set since the rollout began.

    start: begin the first step, even if the rollout has ended. promote: begin the next step now. pause: keep the
    current share. resume: continue the current step. set: keep the share at `percent` until an operator resumes or
    promotes. abort: use the split in the files again, even after the last step.
    """
    if action == "abort":
        return replace(state, phase="aborted", since=now, held_since=None)
    if action == "start":
        if state.runs:
            raise ValueError(f"the rollout is {state.phase}, at step {state.step + 1}")
        state = replace(state, analysis=AnalysisState(), allows_unavailable=False)
    elif not state.runs:
        raise ValueError(f"the rollout is {state.phase}: start it first")
    state = replace(state, allows_unavailable=state.allows_unavailable or allow_unavailable)
    if outage is not None and not state.allows_unavailable and _gives_requests(action, percent):
        raise ValueError(f"{outage.reason}; use --allow-unavailable to move requests to it anyway")
    if action == "start":
        return _at_step(state, rollout, 0, now)
    return _act_on_running(state, rollout, action, now, percent)


def _gives_requests(action: Action, percent: float) -> bool:
    return action in ("start", "promote", "resume") or (action == "set" and percent > 0)


def _act_on_running(state: RolloutState, rollout: Rollout, action: Action, now: float, percent: float) -> RolloutState:
    if action == "promote":
        return _at_step(state, rollout, state.step + 1, now)
    if action == "set":
        return replace(_paused(state, now), percent=percent)
    if action == "pause":
        if state.phase == "paused":
            raise ValueError("the rollout is already paused")
        return _paused(state, now)
    if state.phase != "paused":
        raise ValueError("the rollout is not paused")
    percent = rollout.steps[state.step].percent
    return replace(state, phase="progressing", percent=percent, since=now, analysis=judge.for_step(state.analysis))


def _paused(state: RolloutState, now: float) -> RolloutState:
    return replace(state, phase="paused", since=now, elapsed=_elapsed(state, now), held_since=None)


def _at_step(state: RolloutState, rollout: Rollout, step: int, now: float) -> RolloutState:
    """Return the state at the beginning of a step. After its last step, the rollout is promoted.

    A last step without an automatic end promotes the rollout at once.
    """
    last = len(rollout.steps) - 1
    current = rollout.steps[min(step, last)]
    ends_at_once = step == last and (rollout.mode == "manual" or current.hold is None)
    phase: Phase = "promoted" if step > last or ends_at_once else "progressing"
    return replace(
        state,
        phase=phase,
        step=min(step, last),
        percent=current.percent,
        since=now,
        elapsed=0.0,
        held_since=None,
        reason="",
        analysis=judge.for_step(state.analysis),
    )


def rollout_of(topology: Topology, route: str) -> Rollout | None:
    """Return a route's rollout, or None if the route has none or does not exist."""
    return next((rollout for _, rollout in _rollouts(topology, route)), None)


def _rollouts(topology: Topology, name: str | None = None) -> Iterator[tuple[Route, Rollout]]:
    routes: Iterable[Route] = topology.routes
    for route in routes:
        if route.rollout is not None and name in (None, route.name):
            yield route, route.rollout

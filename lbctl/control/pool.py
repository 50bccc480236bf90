"""Makes one decision about a pool: its replicas' health, then the strategy's proposals, then bounded steps.

The order matters. Ejected replicas do not count as peers of the others. If more than half of the replicas look slow,
hot or stale, the samples are more likely to be at fault than the replicas, so no weight changes. A stall, an XID or too
little memory concerns a single replica, so these faults cause up to `max_ejection` of the pool to be ejected,
regardless of the other replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from lbctl.control import health
from lbctl.control.effects import Effect, HealthChanged, Mode, ModeChanged, RemapAcceptanceChanged, WeightsChanged
from lbctl.control.health import DeepHealth, HealthRules
from lbctl.control.inputs import Observation
from lbctl.control.rate_limit import Assessment, StepLimits
from lbctl.control.state import PoolState, ReplicaState, WeightTrajectory, weights
from lbctl.control.weighting import STRATEGIES
from lbctl.control.weighting.strategy import WHOLE, Proposal

MAX_EJECTION = 50.0
"""Maximum percentage of ejected replicas if the pool has no passive check."""
Decided = tuple[PoolState, tuple[Effect, ...]]


def decide(before: PoolState, state: PoolState, observations: Mapping[str, Observation], now: float) -> Decided:
    """Return the pool's state after one decision, and its effects.

    Effects are relative to `before`. `state` is the same pool with the event's changes, such as an operator's freeze.
    `observations` contains the replicas sampled since the last decision.
    """
    state = replace(state, decided_at=now)
    assessments = [_assess(state.rules, item, observations.get(item.replica.name), now) for item in state.replicas]
    proposals = _proposals(state, assessments, now)
    healthy = [assessed.is_healthy for _, _, assessed, _ in assessments]
    state = _with_mode(state, assessments, healthy, proposals, now)
    healths = [assessed for _, _, assessed, _ in assessments]
    if state.suspected or not all(healthy):
        healths = _next_healths(state, assessments, healthy, now)
        healthy = [item.is_healthy for item in healths]
    limits = StepLimits.of(state, now)
    replicas = tuple(map(limits.apply, state.replicas, assessments, healths, healthy, proposals))
    state = replace(state, replicas=replicas)
    return state, _effects(before, state)


def _assess(rules: HealthRules, replica: ReplicaState, latest: Observation | None, now: float) -> Assessment:
    observation = replica.observation if latest is None else latest
    if observation is None and now - replica.since <= rules.stale_after:
        return observation, False, replica.health, replica.progress_watch  # may have been asleep since before a restart
    if observation is None or now - observation.at > rules.stale_after:
        return (observation, False, *health.without_samples(replica.health, replica.progress_watch))
    if latest is None:
        return observation, True, replica.health, replica.progress_watch
    assessed, watch = health.assess(rules, replica.health, replica.progress_watch, latest)
    return observation, True, assessed, watch


def _proposals(state: PoolState, assessments: Sequence[Assessment], now: float) -> list[Proposal]:
    subjects = [
        (
            item.replica,
            item.peers,
            observation,
            item.proposal.estimate,
            fresh and assessed.phase != "out" and not assessed.is_asleep,
        )
        for item, (observation, fresh, assessed, _) in zip(state.replicas, assessments, strict=True)
    ]
    return STRATEGIES.get(state.pool.weighting.strategy)(state.pool, subjects, state.rules.stale_after, now)


# ── The mode of the pool ─────────────────────────────────────────────────────────────────────────────────────────────


def _with_mode(
    state: PoolState,
    assessments: Sequence[Assessment],
    healthy: Sequence[bool],
    proposals: Sequence[Proposal],
    now: float,
) -> PoolState:
    total = stale = suspicious = 0
    for item, (observation, fresh, assessed, _), is_healthy, proposal in zip(
        state.replicas, assessments, healthy, proposals, strict=True
    ):
        if item.replica.drain or assessed.is_asleep or (not is_healthy and assessed.phase == "out"):
            continue
        total += 1
        if not fresh:
            stale += observation is not None or _never_sampled(state, item, now)
        elif (
            proposal.slow
            if is_healthy
            else not assessed.complaints and (proposal.slow or assessed.temperature.exceeded)
        ):
            suspicious += 1
    mode: Mode = "acting"
    reason = ""
    if state.freeze_reason is not None:
        mode, reason = "held", state.freeze_reason or "by an operator"
    elif stale > total / 2:
        mode = "blind"
        reason = f"{stale} of {total} replicas have no fresh samples: weights return to the configured capacities"
    elif stale + suspicious > total / 2:
        mode = "frozen"
        reason = f"{stale + suspicious} of {total} replicas look slow, hot or stale: weights do not change"
    if mode == state.mode:
        return replace(state, mode_reason=reason) if reason != state.mode_reason else state
    return replace(state, mode=mode, mode_reason=reason, mode_since=now)


def _never_sampled(state: PoolState, replica: ReplicaState, now: float) -> bool:
    """Whether the replica has sources but has had no sample from them for `stale_after`."""
    telemetry = replica.replica.telemetry or state.pool.telemetry
    return bool(telemetry and telemetry.sources) and now - replica.since > state.rules.stale_after


# ── Health of the whole ──────────────────────────────────────────────────────────────────────────────────────────────


def _next_healths(
    state: PoolState, assessments: Sequence[Assessment], healthy: Sequence[bool], now: float
) -> list[DeepHealth]:
    """Replicas that are ejected by proxies, drained or asleep do not count towards `max_ejection`."""
    ejections_left = _ejections_left(state, assessments)
    healths = []
    for replica, (_, _, current, watch), is_healthy in zip(state.replicas, assessments, healthy, strict=True):
        if is_healthy or current.is_asleep:
            healths.append(current)
            continue
        counts = not replica.replica.drain and replica.replica.name not in state.ejected
        after = health.next_phase(state.rules, current, watch, ejections_left > 0 or not counts, now)
        if counts and after.phase == "out" and current.phase != "out":
            ejections_left -= 1
        healths.append(after)
    fresh = [is_fresh for _, is_fresh, _, _ in assessments]
    return list(_with_suspicions(state, healths, fresh, ejections_left))


def _with_suspicions(
    state: PoolState, healths: Iterable[DeepHealth], fresh: Iterable[bool], ejections_left: int
) -> Iterator[DeepHealth]:
    """Yield the health states, with the picker's suspicions about fresh replicas, as far as `max_ejection` allows."""
    for replica, current, is_fresh in zip(state.replicas, healths, fresh, strict=True):
        name = replica.replica.name
        counts = not replica.replica.drain and name not in state.ejected
        is_suspected = name in state.suspected and is_fresh and current.phase == "in" and not current.is_asleep
        if is_suspected and counts:
            is_suspected = ejections_left > 0
            ejections_left -= 1
        yield current if is_suspected == current.is_suspected else current._replace(is_suspected=is_suspected)


def _ejections_left(state: PoolState, assessments: Sequence[Assessment]) -> int:
    """Return the number of additional replicas that may be ejected according to `max_ejection`."""
    total = ejected = 0
    for replica, (_, _, assessed, _) in zip(state.replicas, assessments, strict=True):
        if not replica.replica.drain and not assessed.is_asleep:
            total += 1
            ejected += assessed.phase == "out" or replica.replica.name in state.ejected
    passive = state.pool.passive
    return int(total * (passive.max_ejection if passive else MAX_EJECTION) / 100) - ejected


# ── Effects ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _effects(before: PoolState, after: PoolState) -> tuple[Effect, ...]:
    name = after.pool.name
    effects: list[Effect] = []
    if after.mode != before.mode:
        effects.append(ModeChanged(name, after.mode, after.mode_reason))
    effects.extend(health_changes(name, zip(before.replicas, after.replicas, strict=True)))
    trajectories = [
        (new.trajectory, old.trajectory)
        for new, old in zip(after.replicas, before.replicas, strict=True)
        if new.trajectory is not old.trajectory
    ]
    if any(_sends_another(new, old) for new, old in trajectories):
        effects.append(weights_of(after))
    return tuple(effects)


def health_changes(
    pool: str, replicas: Iterable[tuple[ReplicaState, ReplicaState]]
) -> Iterator[HealthChanged | RemapAcceptanceChanged]:
    """Yield an effect for each change that matters to proxies or to a restart.

    `replicas` contains each replica before and after.
    """
    for before, after in replicas:
        old, new = before.health, after.health
        if new is old:
            continue
        if new.accepts_remap != old.accepts_remap:
            yield RemapAcceptanceChanged(pool, after.replica.name, new.accepts_remap)
        if (new.verdict, new.verdict_reasons) != (old.verdict, old.verdict_reasons):
            yield HealthChanged(pool, after.replica.name, new.verdict, new.verdict_reasons)


def weights_of(pool: PoolState) -> WeightsChanged:
    """Return the effect with the last decided weights."""
    trajectories = [item.trajectory for item in pool.replicas]
    at_capacity = all(item.decided == 1.0 and item.decided_parts == WHOLE for item in trajectories)
    return WeightsChanged(pool.pool.name, weights(pool), at_capacity)


def _sends_another(new: WeightTrajectory, old: WeightTrajectory) -> bool:
    return (new.decided, new.decided_parts) != (old.decided, old.decided_parts)

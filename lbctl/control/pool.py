"""One decision about a pool: its health first, then what its strategy wishes, then that in bounded steps.

The order matters. Who is out is no peer of the others; and when more than half look slow, hot or stale, the fault is
more likely in the samples than in the replicas: then no weight moves. A stall, an XID and lost memory are told of each
replica by itself: they take out as many as `max_ejection` lets, whatever the others look like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lbctl.control import health, ramp
from lbctl.control.effects import Effect, HealthChanged, Mode, ModeChanged, RampsChanged, WeightsChanged
from lbctl.control.health import Health, Rules
from lbctl.control.inputs import Seen
from lbctl.control.state import Course, PoolState, Track, weights
from lbctl.control.steps import Look, Steps
from lbctl.control.weighting import STRATEGIES
from lbctl.control.weighting.strategy import Wish

MAX_EJECTION = 50.0
"""Percent, where the pool has no passive check."""
Decided = tuple[PoolState, tuple[Effect, ...]]


def decided(was: PoolState, state: PoolState, news: Mapping[str, Seen], now: float) -> Decided:
    """`was`: what the effects are told against, `state`: the same with what has been changed by hand."""
    state = replace(state, decided_at=now)
    looks = [_looked(state.rules, item, news.get(item.replica.name), now) for item in state.tracks]
    wishes = _wishes(state, looks, now)
    state = _mode(state, looks, wishes, now)
    healths = _settled(state, looks, now)
    steps = Steps.of(state, now)
    tracks = tuple(map(steps.moved, state.tracks, looks, healths, wishes))
    return _told(was, replace(state, tracks=tracks), now)


def _looked(rules: Rules, track: Track, news: Seen | None, now: float) -> Look:
    seen = track.seen if news is None else news
    if seen is None or now - seen.at > rules.stale_after:
        return (seen, False, *health.unknown(track.health, track.pulse))
    if news is None:
        return seen, True, track.health, track.pulse
    known, pulse = health.judged(rules, track.health, track.pulse, news)
    return seen, True, known, pulse


def _wishes(state: PoolState, looks: Sequence[Look], now: float) -> list[Wish]:
    rules = state.pool.weighting
    subjects = [
        (track.replica, track.peers, seen, track.wish.estimate, fresh and known.phase != "out")
        for track, (seen, fresh, known, _) in zip(state.tracks, looks, strict=True)
    ]
    return STRATEGIES.get(rules.strategy)(rules, subjects, state.rules.stale_after, now)


# ── Who looks bad ────────────────────────────────────────────────────────────────────────────────────────────────────


def _mode(state: PoolState, looks: Sequence[Look], wishes: Sequence[Wish], now: float) -> PoolState:
    there = stale = bad = 0
    for track, (seen, fresh, known, _), wish in zip(state.tracks, looks, wishes, strict=True):
        if known.phase == "out" or track.replica.drain:
            continue
        there += 1
        if not fresh:
            stale += seen is not None or _is_silent(state, track, now)
        elif not known.complaints and (wish.slow or known.hot.over):
            bad += 1
    mode: Mode = "acting"
    words = ""
    if state.held is not None:
        mode, words = "held", state.held or "by an operator"
    elif stale > there / 2:
        mode, words = "blind", f"{stale} of {there} replicas have no fresh samples: back to their capacities"
    elif stale + bad > there / 2:
        mode, words = "frozen", f"{stale + bad} of {there} replicas look slow, hot or stale: weights stay"
    if mode == state.mode:
        return replace(state, mode_words=words) if words != state.mode_words else state
    return replace(state, mode=mode, mode_words=words, mode_since=now)


def _is_silent(state: PoolState, track: Track, now: float) -> bool:
    """One that has sources and has never given a sample, for as long as makes samples stale."""
    telemetry = track.replica.telemetry or state.pool.telemetry
    return bool(telemetry and telemetry.sources) and now - track.since > state.rules.stale_after


# ── Health of the whole ──────────────────────────────────────────────────────────────────────────────────────────────


def _settled(state: PoolState, looks: Sequence[Look], now: float) -> list[Health]:
    """Those that proxies hold out or that drain anyway cost no room."""
    healths = [known for _, _, known, _ in looks]
    if not [known for known in healths if not known.well]:
        return healths
    room = _room(state, looks)
    found = []
    for track, (_, _, known, pulse) in zip(state.tracks, looks, strict=True):
        if known.well:
            found.append(known)
            continue
        counts = not track.replica.drain and track.replica.name not in state.ejected
        after = health.settled(state.rules, known, pulse, room > 0 or not counts, now)
        if counts and after.phase == "out" and known.phase != "out":
            room -= 1
        found.append(after)
    return found


def _room(state: PoolState, looks: Sequence[Look]) -> int:
    """How many more may be taken out."""
    there = gone = 0
    for track, (_, _, known, _) in zip(state.tracks, looks, strict=True):
        if not track.replica.drain:
            there += 1
            gone += known.phase == "out" or track.replica.name in state.ejected
    passive = state.pool.passive
    return int(there * (passive.max_ejection if passive else MAX_EJECTION) / 100) - gone


# ── What is told ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _told(was: PoolState, state: PoolState, now: float) -> Decided:
    name = state.pool.name
    told: list[Effect] = []
    if state.mode != was.mode:
        told.append(ModeChanged(name, state.mode, state.mode_words))
    told.extend(_health(was, state))
    moved = [
        (new.course, old.course)
        for new, old in zip(state.tracks, was.tracks, strict=True)
        if new.course is not old.course
    ]
    if any(_tells_another(new, old) for new, old in moved):
        told.append(WeightsChanged(name, weights(state)))
    factors = ramp.factors(state.pool.slow_start, state.tracks, now)
    if ramp.worth_telling(state.ramps, factors):
        told.append(RampsChanged(name, factors))
        state = replace(state, ramps=factors)
    return state, tuple(told)


def _tells_another(new: Course, old: Course) -> bool:
    return (new.sent, new.sent_parts) != (old.sent, old.sent_parts)


def _health(was: PoolState, state: PoolState) -> list[HealthChanged]:
    name = state.pool.name
    return [
        HealthChanged(name, new.replica.name, new.health.verdict, new.health.words)
        for new, old in zip(state.tracks, was.tracks, strict=True)
        if new.health is not old.health
        and (new.health.verdict, new.health.words) != (old.health.verdict, old.health.words)
    ]

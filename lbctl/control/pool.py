"""One decision about a pool: its health first, then what its strategy wishes, then that in bounded steps.

The order matters. Who is out is no peer of the others; and when more than half look bad, the fault is more likely in
the samples than in the replicas: then nothing moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lbctl.control import health, ramp
from lbctl.control.effects import Effect, HealthChanged, Mode, ModeChanged, RampsChanged, WeightsChanged
from lbctl.control.inputs import Seen
from lbctl.control.state import PoolState, Track, weights
from lbctl.control.steps import Steps, moved
from lbctl.control.weighting import STRATEGIES
from lbctl.control.weighting.strategy import Subject, Wish

Decided = tuple[PoolState, tuple[Effect, ...]]


def decided(was: PoolState, state: PoolState, news: Mapping[str, Seen], now: float) -> Decided:
    """`was`: what the effects are told against, `state`: the same with what has been changed by hand."""
    state = replace(state, decided_at=now)
    tracks = [_looked(state, item, news.get(item.replica.name), now) for item in state.tracks]
    wishes = _wishes(state, tracks, now)
    state = _mode(state, tracks, wishes, now)
    tracks = _settled(state, tracks, now)
    steps = Steps.of(state, now)
    state = replace(state, tracks=tuple(moved(steps, item, wish) for item, wish in zip(tracks, wishes, strict=True)))
    return _told(was, state, now)


def _looked(state: PoolState, track: Track, news: Seen | None, now: float) -> Track:
    if news is not None:
        fresh = now - news.at <= state.rules.stale_after
        known = health.judged(state.rules, track.health, news, now) if fresh else health.unknown(track.health)
        return track._replace(seen=news, health=known, fresh=fresh)
    fresh = track.seen is not None and now - track.seen.at <= state.rules.stale_after
    if fresh or not track.fresh:
        return track
    return track._replace(fresh=False, health=health.unknown(track.health))


def _wishes(state: PoolState, tracks: list[Track], now: float) -> list[Wish]:
    rules = state.pool.weighting
    subjects = [
        Subject(item.replica, item.peers, item.seen, item.wish.estimate, item.fresh and item.health.phase != "out")
        for item in tracks
    ]
    return STRATEGIES.get(rules.strategy)(rules, subjects, state.rules.stale_after, now)


# ── Who looks bad ────────────────────────────────────────────────────────────────────────────────────────────────────


def _mode(state: PoolState, tracks: list[Track], wishes: list[Wish], now: float) -> PoolState:
    there = [
        (item, wish)
        for item, wish in zip(tracks, wishes, strict=True)
        if not item.replica.drain and item.health.phase != "out"
    ]
    seen = sum(item.seen is not None for item, _ in there)
    stale = sum(item.seen is not None and not item.fresh for item, _ in there)
    bad = sum(
        bool(item.health.complaints) or item.health.hot.over or wish.slow
        for item, wish in there
    )
    mode: Mode = "acting"
    words = ""
    if state.held is not None:
        mode, words = "held", state.held or "by an operator"
    elif seen and stale > len(there) / 2:
        mode, words = "blind", f"{stale} of {len(there)} replicas have stale samples: back to their capacities"
    elif stale + bad > len(there) / 2:
        mode, words = "frozen", f"{stale + bad} of {len(there)} replicas look bad: weights stay, nobody is taken out"
    if mode == state.mode:
        return replace(state, mode_words=words) if words != state.mode_words else state
    return replace(state, mode=mode, mode_words=words, mode_since=now)


# ── Health of the whole ──────────────────────────────────────────────────────────────────────────────────────────────


def _settled(state: PoolState, tracks: list[Track], now: float) -> list[Track]:
    there = [item for item in tracks if not item.replica.drain]
    gone = sum(item.health.phase == "out" or item.replica.name in state.ejected for item in there)
    passive = state.pool.passive
    room = int(len(there) * (passive.max_ejection if passive else 50.0) / 100) - gone
    if state.mode == "frozen":
        room = 0
    found = []
    for item in tracks:
        counts = item.replica.name not in state.ejected and not item.replica.drain
        known = health.settled(state.rules, item.health, room > 0 or not counts, now)
        if known is item.health:
            found.append(item)
            continue
        if known.phase == "out" and item.health.phase != "out" and counts:
            room -= 1
        found.append(item._replace(health=known))
    return found


# ── What is told ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _told(was: PoolState, state: PoolState, now: float) -> Decided:
    name = state.pool.name
    told: list[Effect] = []
    if state.mode != was.mode:
        told.append(ModeChanged(name, state.mode, state.mode_words))
    told.extend(_health(was, state))
    if any(new.sent != old.sent for new, old in zip(state.tracks, was.tracks, strict=True)):
        told.append(WeightsChanged(name, weights(state)))
    factors = ramp.factors(state.pool.slow_start, state.tracks, now)
    if ramp.worth_telling(state.ramps, factors):
        told.append(RampsChanged(name, factors))
        state = replace(state, ramps=factors)
    return state, tuple(told)


def _health(was: PoolState, state: PoolState) -> list[HealthChanged]:
    return [
        HealthChanged(state.pool.name, new.replica.name, new.health.verdict, new.health.words)
        for new, old in zip(state.tracks, was.tracks, strict=True)
        if new.health is not old.health
        and (new.health.verdict, new.health.words) != (old.health.verdict, old.health.words)
    ]

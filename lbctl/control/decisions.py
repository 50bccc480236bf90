"""Why a replica has the weight that it has: every number on the way from its signals to what was sent, with ages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lbctl.control.effects import Mode, Verdict
from lbctl.control.state import PoolState, State, Track, weight
from lbctl.ir.weight import Weight
from lbctl.signals.merge import Signal


@dataclass(frozen=True, slots=True)
class Decision:
    """signal → normalised → wished → clamped → damped → sent. Ages in seconds, None where there never was one.

    `signal`: speed (or load) per capacity, comparable within the pool alone. `normalised`: the natural logarithm of it
    against the peers' upper median, `across`: of that against the pool's. `wished` is what the strategy asks for,
    `goal` that within floor and ceiling or what health and staleness make of it, `damped` after bounded steps, `sent`
    beyond the deadband: parts of the capacity. `weight`: of `sent`, with what of it is speed and what is room. `ramp`:
    the factor for proxies that do not ramp by themselves."""

    pool: str
    replica: str
    strategy: str
    mode: Mode
    mode_words: str
    capacity: float
    signals: Mapping[str, Signal]
    age: float | None
    evidence_age: float | None
    signal: float | None
    normalised: float
    across: float
    wished: float | None
    goal: float
    damped: float
    sent: float
    weight: Weight
    ramp: float
    verdict: Verdict
    words: tuple[str, ...]


def decisions(state: State, pool: str) -> tuple[Decision, ...]:
    """One a replica, in the order of the pool; empty for an unknown pool."""
    known = state.pools.get(pool)
    return tuple(_decision(known, item, state.now) for item in known.tracks) if known else ()


def _decision(pool: PoolState, track: Track, now: float) -> Decision:
    wish, seen, estimate = track.wish, track.seen, track.wish.estimate
    return Decision(
        pool=pool.pool.name,
        replica=track.replica.name,
        strategy=pool.pool.weighting.strategy,
        mode=pool.mode,
        mode_words=pool.mode_words,
        capacity=track.replica.capacity,
        signals={**seen.signals.stale, **seen.signals.values} if seen else {},
        age=now - seen.at if seen else None,
        evidence_age=now - estimate.at if estimate.total else None,
        signal=wish.signal,
        normalised=wish.normalised,
        across=wish.across,
        wished=wish.multiplier,
        goal=track.goal,
        damped=track.course.multiplier,
        sent=track.course.sent,
        weight=weight(track),
        ramp=pool.ramps.get(track.replica.name, 1.0),
        verdict=track.health.verdict,
        words=_words(pool, track),
    )


def _words(pool: PoolState, track: Track) -> tuple[str, ...]:
    found = track.health.words
    if track.seen is None and pool.pool.telemetry is not None:
        found += ("no sample yet",)
    elif track.seen is not None and not track.fresh:
        found += ("its samples are stale",)
    return (*found, *((track.wish.words,) if track.wish.words else ()))

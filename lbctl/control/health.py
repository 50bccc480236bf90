"""Deep health of one replica, from telemetry: what no 200 on /health tells.

A fatal XID seen anew, a stalled engine and too little memory take it out; too hot brings it to the floor. A sticky old
XID, a saturated engine that still makes progress, a throttled GPU and whatever is unknown are not held against it.

The way back: `healthy_threshold` good looks and progress that moves. A replica that is out gets no requests and may have
nothing to progress with, so after `ejection_time` (times the number of ejections, ten at most) it is let in on trial at
the floor, and is out again if it stalls; where it still shows a stall, after ten times as long, since a leaked gauge must
not hold it out for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from lbctl.control.effects import Verdict
from lbctl.control.inputs import Reading, Seen
from lbctl.ir.pools import ActiveCheck, DeepCheck, PassiveCheck, Pool

COOLER = 5.0
"""°C below the limit at which a hot replica is cool again."""
FREER = 1.1
"""Times the limit at which memory is enough again."""
MOST_PATIENCE = 10
_NEVER = float("-inf")

Phase = Literal["in", "trial", "out"]


class Level(NamedTuple):
    """A limit with hysteresis. `looks`: that in a row said the opposite of `over`."""

    over: bool = False
    looks: int = 0


class Health(NamedTuple):
    """`complaints`: what is wrong by the newest look; `reasons`: why the phase is not "in". `since`: when the phase
    began. `still_since`: since when the progress counter stands still with requests in flight. `mark`: progress at the
    begin of the phase. `fatal`: a fatal XID that has not yet taken it out. `denied`: it would be out, but too many are."""

    phase: Phase = "in"
    reasons: tuple[str, ...] = ()
    complaints: tuple[str, ...] = ()
    since: float = _NEVER
    looked: float = _NEVER
    progress: float | None = None
    mark: float | None = None
    still_since: float | None = None
    xid: float | None = None
    fatal: float | None = None
    low: Level = Level()
    hot: Level = Level()
    good: int = 0
    ejections: int = 0
    denied: bool = False

    @property
    def verdict(self) -> Verdict:
        if self.phase == "out":
            return "out"
        return "floor" if self.phase == "trial" or self.hot.over or self.denied else "in"

    @property
    def words(self) -> tuple[str, ...]:
        """Why the verdict is what it is."""
        if self.verdict == "in":
            return ()
        return (*self.reasons, *(("above the limit of temperature",) if self.hot.over else ()))


@dataclass(frozen=True, slots=True)
class Rules:
    """Seconds. `bad_looks`, `good_looks`: in a row, until a level or a phase changes."""

    deep: DeepCheck
    stalled_after: float | None
    stale_after: float
    ejection_time: float
    bad_looks: int
    good_looks: int


def rules(pool: Pool) -> Rules:
    """The thresholds are those of the active check, the time is that of the passive one, or their defaults."""
    active = pool.active
    passive = pool.passive or PassiveCheck()
    stalled = pool.deep.stalled_after
    return Rules(
        pool.deep,
        stalled / 1000 if stalled is not None else None,
        pool.telemetry.stale_after / 1000 if pool.telemetry else 15.0,
        passive.ejection_time / 1000,
        active.unhealthy_threshold if active else ActiveCheck.unhealthy_threshold,
        active.healthy_threshold if active else ActiveCheck.healthy_threshold,
    )


def judged(rule: Rules, was: Health, seen: Seen, now: float) -> Health:
    """The same replica after a look. Phases change in `settled`, where the whole pool is known."""
    if seen.at <= was.looked:
        return was
    signals, oldest = seen.signals, now - rule.stale_after
    progress, still = _progress(was, signals, seen, oldest)
    xid, fatal = _xid(rule, was, _fresh(signals, "xid", oldest))
    low = _low(rule, was.low, seen, oldest) if rule.deep.min_free_memory is not None else was.low
    hot = _hot(rule, was.hot, _fresh(signals, "temperature", oldest))
    complaints = _complaints(rule, fatal, still, progress, low)
    return Health(
        was.phase, was.reasons, complaints, was.since, seen.at,
        progress.value if progress is not None else was.progress, was.mark, still, xid, fatal, low, hot,
        0 if complaints else was.good + 1, was.ejections, was.denied,
    )  # fmt: skip


def unknown(was: Health) -> Health:
    """Its samples are stale: nothing that they said holds, except that it is out."""
    if was.complaints or was.still_since is not None or was.denied or was.good or was.low.over or was.hot.over:
        return was._replace(complaints=(), still_since=None, denied=False, good=0, low=Level(), hot=Level())
    return was


def settled(rule: Rules, was: Health, may_leave: bool, now: float) -> Health:
    """The phase that follows from the look. `may_leave`: it is not one too many."""
    if was.phase == "out":
        return _way_back(rule, was, now)
    if was.complaints:
        return _out(was, now) if may_leave else _denied(was)
    if was.phase == "trial" and was.good >= rule.good_looks and _moved(was):
        return was._replace(phase="in", reasons=(), since=now, ejections=0)
    return was._replace(denied=False, reasons=() if was.phase == "in" else was.reasons) if was.denied else was


def let_in(was: Health, now: float) -> Health:
    """By an operator: what counted against it is forgotten, what was seen is not."""
    return Health(since=now, looked=was.looked, progress=was.progress, xid=was.xid)


# ── One signal each ──────────────────────────────────────────────────────────────────────────────────────────────────


def _fresh(signals: Mapping[str, Reading], name: str, oldest: float) -> Reading | None:
    reading = signals.get(name)
    return reading if reading is not None and reading.at >= oldest else None


def _progress(
    was: Health, signals: Mapping[str, Reading], seen: Seen, oldest: float
) -> tuple[Reading | None, float | None]:
    """(the counter, since when it stands still though there is work)"""
    progress = _fresh(signals, "progress", oldest)
    if progress is None:
        return None, None
    if progress.value != was.progress:
        return progress, progress.at
    if not _busy(signals, seen, oldest):
        return progress, None
    return progress, was.still_since if was.still_since is not None else progress.at


def _busy(signals: Mapping[str, Reading], seen: Seen, oldest: float) -> bool:
    if seen.in_flight:
        return True
    running, queue = _fresh(signals, "running", oldest), _fresh(signals, "queue", oldest)
    return bool((running is not None and running.value) or (queue is not None and queue.value))


def _xid(rule: Rules, was: Health, xid: Reading | None) -> tuple[float | None, float | None]:
    """The gauge holds the last XID for ever: only a change to a fatal one counts, and not the first value seen."""
    if xid is None:
        return was.xid, was.fatal
    anew = was.xid is not None and xid.value != was.xid
    fatal = anew and xid.value in rule.deep.fatal_xids
    return xid.value, xid.value if fatal else was.fatal


def _low(rule: Rules, was: Level, seen: Seen, oldest: float) -> Level:
    free = _fresh(seen.signals, "gpu_memory_free", oldest)
    limit = rule.deep.min_free_memory
    if free is None or limit is None or seen.reserves_memory:
        return Level()
    return _level(rule, was, free.value < limit, free.value >= limit * FREER)


def _hot(rule: Rules, was: Level, temperature: Reading | None) -> Level:
    limit = rule.deep.max_temperature
    if temperature is None or limit is None:
        return Level()
    return _level(rule, was, temperature.value > limit, temperature.value <= limit - COOLER)


def _level(rule: Rules, was: Level, bad: bool, good: bool) -> Level:
    against = good if was.over else bad
    if not against:
        return Level(was.over) if was.looks else was
    looks = was.looks + 1
    needed = rule.good_looks if was.over else rule.bad_looks
    return Level(not was.over) if looks >= needed else Level(was.over, looks)


def _complaints(
    rule: Rules, fatal: float | None, still: float | None, progress: Reading | None, low: Level
) -> tuple[str, ...]:
    found: tuple[str, ...] = ()
    if fatal is not None:
        found += (f"XID {fatal:.0f}",)
    if progress is not None and still is not None and rule.stalled_after is not None:
        stands = progress.at - still
        if stands >= rule.stalled_after:
            found += ("stalled: requests in flight, and its progress counter stands still",)
    if low.over:
        found += ("free GPU memory below the limit",)
    return found


# ── Phases ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _out(was: Health, now: float) -> Health:
    return was._replace(
        phase="out", reasons=was.complaints, since=now, mark=was.progress, fatal=None, good=0,
        ejections=was.ejections + 1, denied=False,
    )  # fmt: skip


def _denied(was: Health) -> Health:
    reasons = (*was.complaints, "not taken out: too many would be")
    return was._replace(denied=True, reasons=reasons) if was.reasons != reasons else was


def _moved(was: Health) -> bool:
    """A source without the counter is believed without."""
    return was.progress is None or was.progress != was.mark


def _way_back(rule: Rules, was: Health, now: float) -> Health:
    if was.good >= rule.good_looks and was.progress is not None and was.progress != was.mark:
        return was._replace(phase="in", reasons=(), since=now, ejections=0)
    patience = rule.ejection_time * min(was.ejections, MOST_PATIENCE) * (MOST_PATIENCE if was.complaints else 1)
    if now - was.since < patience:
        return was
    return was._replace(
        phase="trial", reasons=(f"on trial after: {was.reasons[0] if was.reasons else 'an ejection'}",), since=now,
        mark=was.progress, still_since=None, complaints=(), good=0,
    )  # fmt: skip

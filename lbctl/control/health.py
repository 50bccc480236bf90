"""Deep health of one replica, from telemetry: what no 200 on /health tells.

A fatal XID seen anew, a stalled engine and too little memory take it out; too hot brings it to the floor. A sticky old
XID, a saturated engine that still makes progress, a throttled GPU and whatever is unknown are not held against it.
Where progress is counted in requests, not in steps, a long answer looks like a stall: there it takes four times as
long, and so it does where proxies alone say that requests are there.

The way back of a stalled one: `healthy_threshold` good looks and progress that moves, which is what it was out for. One
that is out gets no requests and may have nothing to progress with, and what the requests that it still had do says
nothing of a broken GPU or of memory. So after `ejection_time` (times the number of ejections, ten at most) each is let
in on trial at the floor; it is in after as many good looks with progress that moved there, and out again at any
complaint. Where it still has one, the trial comes after ten times as long: a leaked gauge must not hold it out for
ever.

Looks count once an interval, however many sources report.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from lbctl.control.effects import Verdict
from lbctl.control.inputs import NEVER, Seen
from lbctl.ir.pools import DeepCheck, PassiveCheck, Pool, Telemetry
from lbctl.signals.merge import Signal, Signals

COOLER = 5.0
"""°C below the limit at which a hot replica is cool again."""
FREER = 1.1
"""Times the limit at which memory is enough again."""
MOST_PATIENCE = 10
UNCERTAIN = 4
"""Times `stalled_after`, where a stall is less certain: progress is counted in requests, or proxies say that requests
are there and the engine says that none is (its page may be late, or a client sends a body slowly)."""
_EARLY = 0.2
"""Part of an interval by which a look may come early: looks are not to the microsecond."""
_LATE_ENOUGH = 1 - _EARLY
_BAD_LOOKS, _GOOD_LOOKS = 3, 2
"""Where the pool has no active check; its own defaults."""
_STALLED = "stalled: requests in flight, and its progress counter stands still"
_LOW = "free GPU memory below the limit"
_HOT = "above the limit of temperature"

Phase = Literal["in", "trial", "out"]


class Level(NamedTuple):
    """A limit with hysteresis. `looks`: so many in a row said the opposite of `over`."""

    over: bool = False
    looks: int = 0


_FINE = Level()
_NO_XIDS: frozenset[tuple[str, int]] = frozenset()


class Pulse(NamedTuple):
    """What changes at every look. `progress`: the counter; `still_since`: since when it stands still with requests in
    flight; `counted`: the last look that thresholds count. Apart from `Health`, which in a fleet that is well stays the
    same object."""

    looked: float = NEVER
    progress: float | None = None
    still_since: float | None = None
    counted: float = NEVER


class Health(NamedTuple):
    """`complaints`: what is wrong by the newest look; `reasons`: why the phase is not "in". `since`: when the phase
    began; `mark`: the progress counter then, or the first since, of one that is out or on trial. `xids`: as last told,
    None before. `fatal`: an XID that has not yet taken it out. `denied`: it would be out, but too many are. `good`:
    looks without complaint, no more than needed."""

    phase: Phase = "in"
    reasons: tuple[str, ...] = ()
    complaints: tuple[str, ...] = ()
    since: float = NEVER
    mark: float | None = None
    xids: frozenset[tuple[str, int]] | None = None
    fatal: int | None = None
    low: Level = _FINE
    hot: Level = _FINE
    good: int = 0
    ejections: int = 0
    denied: bool = False

    @property
    def well(self) -> bool:
        """Nothing is held against it."""
        return self.phase == "in" and not (self.complaints or self.denied or self.hot.over)

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
        return (*self.reasons, *((_HOT,) if self.hot.over else ()))


@dataclass(frozen=True, slots=True)
class Rules:
    """Seconds. `interval`, `stale_after`: of the pool, and where it has none the longest of its replicas' own.
    `bad_looks`, `good_looks`: in a row, until a level or a phase changes."""

    deep: DeepCheck
    stalled_after: float | None
    interval: float
    stale_after: float
    ejection_time: float
    bad_looks: int
    good_looks: int


def rules(pool: Pool) -> Rules:
    """The thresholds are those of the active check, the time is that of the passive one, or their defaults."""
    active = pool.active
    passive = pool.passive or PassiveCheck()
    stalled = pool.deep.stalled_after
    own = [item.telemetry for item in pool.replicas if item.telemetry is not None]
    telemetry = [pool.telemetry] if pool.telemetry is not None else own or [Telemetry()]
    return Rules(
        pool.deep,
        stalled / 1000 if stalled is not None else None,
        max(item.interval for item in telemetry) / 1000,
        max(item.stale_after for item in telemetry) / 1000,
        passive.ejection_time / 1000,
        active.unhealthy_threshold if active else _BAD_LOOKS,
        active.healthy_threshold if active else _GOOD_LOOKS,
    )


def judged(rule: Rules, was: Health, pulse: Pulse, seen: Seen) -> tuple[Health, Pulse]:
    """The same replica after a look. Phases change in `settled`, where the whole pool is known."""
    if seen.at <= pulse.looked:
        return was, pulse
    signals = seen.signals
    last = pulse.counted if pulse.counted > was.since else was.since
    counts = seen.at - last >= rule.interval * _LATE_ENOUGH
    counted = seen.at if counts else pulse.counted
    progress = signals.values.get("progress")
    if progress is not None and progress.value != pulse.progress:
        beat, stands = Pulse(seen.at, progress.value, progress.at, counted), 0.0
    else:
        beat, stands = _still(pulse, progress, seen, counted)
    if not stands and was.good >= rule.good_looks and _says_nothing(rule, was, seen):
        return was, beat
    xids, fatal = _xids(rule, was, signals)
    low, hot = was.low, was.hot
    if counts:
        low, hot = _low(rule, low, seen), _hot(rule, hot, signals.values.get("temperature"))
    complaints = _complaints(rule, fatal, stands, seen, low) if stands or fatal is not None or low.over else ()
    good = 0 if complaints else min(was.good + counts, rule.good_looks)
    same = low is was.low and hot is was.hot and good == was.good and fatal == was.fatal and xids == was.xids
    if same and complaints == was.complaints:
        return was, beat
    return was._replace(xids=xids, fatal=fatal, low=low, hot=hot, good=good, complaints=complaints), beat


def _says_nothing(rule: Rules, was: Health, seen: Seen) -> bool:
    """Whether all that is held or not held against it stays as it is: so at most looks, at a replica that is well."""
    if was.low is not _FINE or was.hot is not _FINE or was.fatal is not None or was.complaints:
        return False
    values, hottest, least = seen.signals.values, rule.deep.max_temperature, rule.deep.min_free_memory
    xid = values.get("xid")
    if xid is not None and (xid.value or was.xids is not _NO_XIDS):
        return False
    if hottest is not None:
        temperature = values.get("temperature")
        if temperature is not None and temperature.value > hottest:
            return False
    if least is None or seen.reserves_memory:
        return True
    free = values.get("gpu_memory_free")
    return free is None or free.value >= least


def _still(was: Pulse, progress: Signal | None, seen: Seen, counted: float) -> tuple[Pulse, float]:
    """The pulse where no progress is seen, and for how many seconds it stands still though there is work."""
    if progress is None:
        return Pulse(seen.at, was.progress, None, counted), 0.0
    if not _busy(seen):
        return Pulse(seen.at, progress.value, None, counted), 0.0
    still = was.still_since if was.still_since is not None else progress.at
    return Pulse(seen.at, progress.value, still, counted), progress.at - still


def unknown(was: Health, pulse: Pulse) -> tuple[Health, Pulse]:
    """Its samples are stale: nothing that they said holds, except that it is out."""
    if was.complaints or was.denied or was.good or was.low is not _FINE or was.hot is not _FINE:
        was = was._replace(complaints=(), denied=False, good=0, low=_FINE, hot=_FINE)
    return was, pulse._replace(still_since=None) if pulse.still_since is not None else pulse


def settled(rule: Rules, was: Health, pulse: Pulse, may_leave: bool, now: float) -> Health:
    """The phase that follows from the look. `may_leave`: it is not one too many."""
    if was.phase == "out":
        return _out(was, pulse, now) if was.fatal is not None else _way_back(rule, was, pulse, now)
    if was.complaints:
        return _out(was, pulse, now) if may_leave else _denied(was)
    if was.phase == "trial":
        was = _marked(was, pulse)
        if was.good >= rule.good_looks and (pulse.progress is None or pulse.progress != was.mark):
            return _in(was, now)
    return was._replace(denied=False, reasons=() if was.phase == "in" else was.reasons) if was.denied else was


def let_in(was: Health, now: float) -> Health:
    """By an operator: what counted against it is forgotten, what was seen is not."""
    return Health(since=now, xids=was.xids)


# ── One signal each ──────────────────────────────────────────────────────────────────────────────────────────────────


def _busy(seen: Seen) -> bool:
    values = seen.signals.values
    running, queue = values.get("running"), values.get("queue")
    return bool(seen.in_flight or (running is not None and running.value) or (queue is not None and queue.value))


def _says_it_is_idle(seen: Seen) -> bool:
    told = [item for name in ("running", "queue") if (item := seen.signals.values.get(name)) is not None]
    return bool(told) and not any(item.value for item in told)


def _xids(rule: Rules, was: Health, signals: Signals) -> tuple[frozenset[tuple[str, int]] | None, int | None]:
    """The gauge holds the last XID for ever: only a change to a fatal one counts, and not what is seen first."""
    signal = signals.values.get("xid")
    if signal is None or (not signal.value and was.xids is _NO_XIDS):
        return was.xids, was.fatal
    told = frozenset(signals.xids or ((("", int(signal.value)),) if signal.value else ())) or _NO_XIDS
    if was.xids is None or told == was.xids:
        return told, was.fatal
    return told, next((code for _, code in sorted(told - was.xids) if code in rule.deep.fatal_xids), was.fatal)


def _low(rule: Rules, was: Level, seen: Seen) -> Level:
    limit = rule.deep.min_free_memory
    free = seen.signals.values.get("gpu_memory_free") if limit is not None else None
    if free is None or limit is None or seen.reserves_memory:
        return _FINE
    return _level(rule, was, free.value < limit, free.value >= limit * FREER)


def _hot(rule: Rules, was: Level, temperature: Signal | None) -> Level:
    limit = rule.deep.max_temperature
    if temperature is None or limit is None:
        return _FINE
    return _level(rule, was, temperature.value > limit, temperature.value <= limit - COOLER)


def _level(rule: Rules, was: Level, bad: bool, good: bool) -> Level:
    against = good if was.over else bad
    if not against:
        return Level(was.over) if was.looks else was
    looks = was.looks + 1
    needed = rule.good_looks if was.over else rule.bad_looks
    return Level(not was.over) if looks >= needed else Level(was.over, looks)


def _complaints(rule: Rules, fatal: int | None, stands: float, seen: Seen, low: Level) -> tuple[str, ...]:
    """`stands`: seconds for which progress stands still with requests in flight."""
    found: tuple[str, ...] = ()
    if fatal is not None:
        found += (f"XID {fatal}",)
    if stands and rule.stalled_after is not None:
        certain = seen.signals.by_steps and not _says_it_is_idle(seen)
        patience = rule.stalled_after * (1 if certain else UNCERTAIN)
        found += (_STALLED,) if stands >= patience - _EARLY * rule.interval else ()
    return (*found, _LOW) if low.over else found


# ── Phases ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _out(was: Health, pulse: Pulse, now: float) -> Health:
    return was._replace(
        phase="out",
        reasons=was.complaints,
        since=now,
        mark=pulse.progress,
        fatal=None,
        good=0,
        ejections=was.ejections + 1,
        denied=False,
    )


def _denied(was: Health) -> Health:
    reasons = (*was.complaints, "not taken out: too many would be")
    return was._replace(denied=True, reasons=reasons) if was.reasons != reasons else was


def _in(was: Health, now: float) -> Health:
    return was._replace(phase="in", reasons=(), since=now, ejections=0, denied=False)


def _marked(was: Health, pulse: Pulse) -> Health:
    """With the first progress that is known since the phase began."""
    return was._replace(mark=pulse.progress) if was.mark is None and pulse.looked >= was.since else was


def _way_back(rule: Rules, was: Health, pulse: Pulse, now: float) -> Health:
    was = _marked(was, pulse)
    moved = pulse.progress is not None and pulse.progress != was.mark
    if was.reasons == (_STALLED,) and was.good >= rule.good_looks and moved:
        return _in(was, now)
    patience = rule.ejection_time * min(was.ejections, MOST_PATIENCE) * (MOST_PATIENCE if was.complaints else 1)
    if now - was.since < patience:
        return was
    reasons = (f"on trial after: {was.reasons[0] if was.reasons else 'an ejection'}",)
    return was._replace(phase="trial", reasons=reasons, since=now, mark=None, complaints=(), good=0)

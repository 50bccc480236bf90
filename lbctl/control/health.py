"""The deep health check of one replica, which uses telemetry to find faults that a 200 from /health does not reveal.

A replica is ejected for a new fatal XID, a failed row remap, a stalled engine or too little memory. If its temperature
is above the limit, its weight is lowered to the floor. A pre-existing XID, a saturated engine that still makes
progress, a throttled GPU and unknown values have no effect. If progress is counted in requests rather than steps, a
long response looks like a stall, so the detection of a stall takes four times as long. The same applies if only proxies
report requests in flight. The stall timer restarts whenever the proxies have received all their responses, because the
metrics page is then late, not the engine.

A stalled replica returns after `healthy_threshold` good observations, once the counter that caused its ejection has
advanced. An ejected replica gets no requests, so it may have nothing to make progress on, and its remaining requests
reveal nothing about a broken GPU or memory. Therefore, each replica is readmitted on trial at the floor weight after
`ejection_time` times the number of ejections (at most ten). The trial succeeds after the same number of good
observations with progress. Any problem causes the replica to be ejected again. While a problem persists, the trial
starts only after ten times as long, so that a stuck gauge cannot keep the replica ejected forever. A GPU with a failed
row remap must be replaced, so its replica remains ejected until the page shows that the failure has been resolved, or
until an operator readmits it. If the page lacks this value, or cannot be read, nothing changes.

In a pool with agents, XID errors and row remaps have no effect here, because the agents evaluate them, remember them
until the engine has restarted, and let an operator readmit the replica.

An engine that reports that it is asleep gets no requests, and is not evaluated, until it is awake or its samples are
stale. Because sleep is not a fault, it does not count towards `max_ejection`, and the replica returns at its full
weight.

The picker notices within seconds that an engine has stopped (`lbctl.pick.stalls`). Because this is only a suspicion,
the published weight is lowered to the floor, within the limit set by `max_ejection`. As soon as the picker uses the
replica again, its weight is restored at once, without steps.

Each interval counts as one observation, regardless of how many sources report.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from lbctl.control.effects import Verdict
from lbctl.control.inputs import NEVER, Observation
from lbctl.control.weighting.strategy import new_tuple
from lbctl.ir.pools import DeepCheck, PassiveCheck, Pool, Telemetry
from lbctl.signals.merge import Signal, Signals

COOLING_MARGIN = 5.0
"""Number of degrees Celsius below the limit at which a hot replica counts as cool again."""
MEMORY_RECOVERY_FACTOR = 1.1
"""Multiple of the limit at which free memory counts as sufficient again."""
MAX_BACKOFF = 10
"""Maximum multiplier of `ejection_time`."""
UNCERTAIN_STALL_FACTOR = 4
"""Multiplier of `stalled_after` if a stall is less certain: progress is counted in requests, or proxies report requests
in flight but the engine reports none (its page may be late, or a client sends a body slowly)."""
SUSPECTED = "probably stalled, according to the picker: its engine had requests but made no progress"
"""The reason for the floor weight of a replica that the picker suspects."""
_EARLY = 0.2
"""Fraction of an interval by which an observation may be early, because samples do not arrive at exact times."""
_MIN_INTERVAL_PART = 1 - _EARLY
_UNHEALTHY_THRESHOLD, _HEALTHY_THRESHOLD = 3, 2
"""The default thresholds for a pool without an active check."""
_STALLED = "stalled: requests are in flight, but its progress counter is not changing"
_LOW_MEMORY = "free GPU memory below the limit"
_REMAP_FAILED = "a GPU could not remap a faulty memory row: replace the GPU"
_OVERHEATED = "temperature above the limit"
ASLEEP = "its engine is asleep"
"""The reason for the "asleep" verdict."""

Phase = Literal["in", "trial", "out"]
RemapFailure = Literal["", "failed", "accepted"]


class Level(NamedTuple):
    """Whether a limit is exceeded, with hysteresis."""

    exceeded: bool = False
    """Whether the limit is exceeded."""
    contrary: int = 0
    """Number of consecutive observations that contradict `exceeded`."""


_WITHIN_LIMIT = Level()
_NO_XIDS: frozenset[tuple[str, int]] = frozenset()


class ProgressWatch(NamedTuple):
    """Values that change with every observation.

    They are separate so that `DeepHealth` remains the same object in a healthy fleet. Times are in seconds.
    """

    observed_at: float = NEVER
    """The time of the newest observation."""
    progress: float | None = None
    """The value of the progress counter."""
    still_since: float | None = None
    """The time since which the counter has not changed despite requests in flight, or None if it is changing or the
    engine is idle."""
    counted_at: float = NEVER
    """Time of the newest observation that counted towards thresholds."""
    answered: int = 0
    """The number of requests that, according to the proxies, have been answered."""


class DeepHealth(NamedTuple):
    """The deep health of one replica. Times are seconds."""

    phase: Phase = "in"
    """Whether the replica is in, ejected, or on trial."""
    reasons: tuple[str, ...] = ()
    """The reason why the phase is not "in"."""
    complaints: tuple[str, ...] = ()
    """Problems found in the newest observation."""
    since: float = NEVER
    """The time at which the phase began."""
    initial_progress: float | None = None
    """The first known value of the progress counter in the "out" or "trial" phase."""
    xids: frozenset[tuple[str, int]] | None = None
    """(device, XID) pairs from the newest observation with XID values. Empty if it reports no XID, and None before the
    first such observation."""
    fatal_xid: int | None = None
    """A fatal XID that has not caused an ejection yet."""
    memory: Level = _WITHIN_LIMIT
    """Whether free GPU memory is below its limit."""
    temperature: Level = _WITHIN_LIMIT
    """Whether the temperature is above its limit."""
    good_count: int = 0
    """Number of consecutive observations without a problem, up to the required number."""
    ejections: int = 0
    """Number of ejections since the replica was last healthy."""
    ejection_denied: bool = False
    """Whether the replica would be ejected if the pool had not reached `max_ejection`."""
    remap_failure: RemapFailure = ""
    """Whether the newest known value shows a failed row remap, and whether an operator has accepted it."""
    is_asleep: bool = False
    """Whether the engine reports that it is asleep."""
    is_suspected: bool = False
    """Whether the published weight is at the floor because the engine has stopped, according to the picker."""

    @property
    def is_healthy(self) -> bool:
        """Whether the replica is awake and has no problems."""
        complained = self.complaints or self.ejection_denied or self.temperature.exceeded or self.is_suspected
        return self.phase == "in" and not (complained or self.is_asleep)

    @property
    def accepts_remap(self) -> bool:
        """Whether an operator has accepted the failed row remap."""
        return self.remap_failure == "accepted"

    @property
    def verdict(self) -> Verdict:
        """The health's effect on the weight."""
        if self.phase == "out":
            return "out"
        if self.is_asleep:
            return "asleep"
        is_lowered = self.temperature.exceeded or self.ejection_denied or self.is_suspected
        return "floor" if self.phase == "trial" or is_lowered else "in"

    @property
    def verdict_reasons(self) -> tuple[str, ...]:
        """The reason why the verdict is not "in", or an empty string if it is."""
        if self.verdict == "in":
            return ()
        if self.verdict == "asleep":
            return (ASLEEP,)
        suspicion = (SUSPECTED,) if self.is_suspected else ()
        return (*self.reasons, *suspicion, *((_OVERHEATED,) if self.temperature.exceeded else ()))


@dataclass(frozen=True, slots=True)
class HealthRules:
    """The limits and thresholds of one pool. Times are seconds."""

    deep: DeepCheck
    """The pool's limits."""
    stalled_after: float | None
    """Time without progress after which a replica counts as stalled. If None, stalls are not detected."""
    interval: float
    """The pool's telemetry interval or, if the pool has none, the longest interval among its replicas."""
    stale_after: float
    """The pool's value or, if the pool has none, the longest value among its replicas."""
    ejection_time: float
    """The minimum duration of an ejection."""
    unhealthy_threshold: int
    """Number of consecutive bad observations after which a limit counts as exceeded."""
    healthy_threshold: int
    """Number of consecutive good observations after which a limit no longer counts as exceeded, or a phase ends."""
    has_agents: bool = False
    """Whether agents next to the replicas evaluate XID errors and row remaps, which then have no effect here."""


def rules_of(pool: Pool) -> HealthRules:
    """Return the pool's rules: thresholds from its active check and times from its passive check, or their defaults."""
    active = pool.active
    passive = pool.passive or PassiveCheck()
    stalled = pool.deep.stalled_after
    own = [item.telemetry for item in pool.replicas if item.telemetry is not None]
    telemetry = [pool.telemetry] if pool.telemetry is not None else own or [Telemetry()]
    return HealthRules(
        pool.deep,
        stalled / 1000 if stalled is not None else None,
        max(item.interval for item in telemetry) / 1000,
        max(item.stale_after for item in telemetry) / 1000,
        passive.ejection_time / 1000,
        active.unhealthy_threshold if active else _UNHEALTHY_THRESHOLD,
        active.healthy_threshold if active else _HEALTHY_THRESHOLD,
        pool.agent is not None,
    )


def assess(
    rules: HealthRules, health: DeepHealth, watch: ProgressWatch, observation: Observation
) -> tuple[DeepHealth, ProgressWatch]:
    """Return the health after one observation.

    Phases change in `next_phase`, which takes the whole pool into account.
    """
    at, signals = observation.at, observation.signals
    observed_at, progress_before, _, counted_at, _ = watch
    if at <= observed_at:
        return health, watch
    awake = signals.values.get("awake")
    if awake is not None and not awake.value:
        return _sleeping(health), ProgressWatch(at, watch.progress, None, at, observation.requests.answered)
    if health.is_asleep:
        health = health._replace(is_asleep=False)
    since = health.since
    counts = at - (counted_at if counted_at > since else since) >= rules.interval * _MIN_INTERVAL_PART
    if counts:
        counted_at = at
    progress = signals.values.get("progress")
    if progress is not None and progress.value != progress_before:
        answered = observation.requests.answered
        after, still_for = new_tuple(ProgressWatch, (at, progress.value, progress.at, counted_at, answered)), 0.0
    else:
        after, still_for = _without_progress(watch, progress, observation, counted_at)
    if not still_for and health.good_count >= rules.healthy_threshold and _changes_nothing(rules, health, observation):
        return health, after
    xids, fatal_xid, remap_failure = health.xids, health.fatal_xid, health.remap_failure
    if not rules.has_agents:
        xids, fatal_xid = _xids(rules, health, signals)
        remap_failure = _remap_failure(health, signals)
    memory, temperature = health.memory, health.temperature
    if counts:
        memory = _memory(rules, memory, observation)
        temperature = _temperature(rules, temperature, signals.values.get("temperature"))
    suspicious = still_for or fatal_xid is not None or remap_failure or memory.exceeded
    complaints = _complaints(rules, fatal_xid, remap_failure, still_for, observation, memory) if suspicious else ()
    good_count = 0 if complaints else min(health.good_count + counts, rules.healthy_threshold)
    same_levels = memory is health.memory and temperature is health.temperature
    same_levels = same_levels and good_count == health.good_count and remap_failure == health.remap_failure
    if same_levels and fatal_xid == health.fatal_xid and xids == health.xids and complaints == health.complaints:
        return health, after
    changed = health._replace(
        xids=xids,
        fatal_xid=fatal_xid,
        remap_failure=remap_failure,
        memory=memory,
        temperature=temperature,
        good_count=good_count,
        complaints=complaints,
    )
    return changed, after


def _sleeping(health: DeepHealth) -> DeepHealth:
    return health if health.is_asleep else health._replace(is_asleep=True, complaints=(), ejection_denied=False)


def _changes_nothing(rules: HealthRules, health: DeepHealth, observation: Observation) -> bool:
    """Whether the observation leaves the health unchanged, as most observations of a healthy replica do."""
    within_limits = health.memory is _WITHIN_LIMIT and health.temperature is _WITHIN_LIMIT
    if not within_limits or health.fatal_xid is not None or health.complaints:
        return False
    values, highest, least = observation.signals.values, rules.deep.max_temperature, rules.deep.min_free_memory
    failure = values.get("row_remap_failure")
    if health.remap_failure or (failure is not None and failure.value):
        return False
    xid = values.get("xid")
    if xid is not None and (xid.value or health.xids is not _NO_XIDS):
        return False
    if highest is not None:
        temperature = values.get("temperature")
        if temperature is not None and temperature.value > highest:
            return False
    if least is None or observation.reserves_memory:
        return True
    free = values.get("gpu_memory_free")
    return free is None or free.value >= least


def _without_progress(
    watch: ProgressWatch, progress: Signal | None, observation: Observation, counted_at: float
) -> tuple[ProgressWatch, float]:
    """Return the state of the counter, and for how many seconds it has not changed despite pending work."""
    in_flight, answered = observation.requests
    if progress is None:
        return ProgressWatch(observation.at, watch.progress, None, counted_at, answered), 0.0
    # Requests from clients that gave up also count as answered, so answers count only if no request is waiting for one.
    all_answered = in_flight == 0 and answered > watch.answered
    if all_answered or not _busy(observation):
        return ProgressWatch(observation.at, progress.value, None, counted_at, answered), 0.0
    since = watch.still_since if watch.still_since is not None else progress.at
    return ProgressWatch(observation.at, progress.value, since, counted_at, answered), progress.at - since


def without_samples(health: DeepHealth, watch: ProgressWatch) -> tuple[DeepHealth, ProgressWatch]:
    """Return the health of a replica whose samples are stale. Only its phase is still taken into account."""
    within_limits = health.memory is _WITHIN_LIMIT and health.temperature is _WITHIN_LIMIT
    if health.complaints or health.ejection_denied or health.good_count or not within_limits:
        health = health._replace(
            complaints=(), ejection_denied=False, good_count=0, memory=_WITHIN_LIMIT, temperature=_WITHIN_LIMIT
        )
    if health.is_asleep:
        health = health._replace(is_asleep=False)
    return health, watch._replace(still_since=None) if watch.still_since is not None else watch


def next_phase(rules: HealthRules, health: DeepHealth, watch: ProgressWatch, may_eject: bool, now: float) -> DeepHealth:
    """Return the health in the resulting phase. `may_eject` is whether `max_ejection` allows another ejection."""
    if health.phase == "out":
        return _ejected(health, watch, now) if health.fatal_xid is not None else _recovered(rules, health, watch, now)
    if health.complaints:
        return _ejected(health, watch, now) if may_eject else _kept_at_floor(health)
    if health.phase == "trial":
        health = _with_initial_progress(health, watch)
        progressed = watch.progress is None or watch.progress != health.initial_progress
        if health.good_count >= rules.healthy_threshold and progressed:
            return _returned(health, now)
    if not health.ejection_denied:
        return health
    return health._replace(ejection_denied=False, reasons=() if health.phase == "in" else health.reasons)


def readmitted(health: DeepHealth, now: float) -> DeepHealth:
    """Return the health after an operator has readmitted the replica.

    Only its XIDs, failed row remap and sleep state are kept.
    """
    remap_failure: RemapFailure = "accepted" if health.remap_failure else ""
    return DeepHealth(since=now, xids=health.xids, remap_failure=remap_failure, is_asleep=health.is_asleep)


def restored(reasons: tuple[str, ...] | None, is_asleep: bool, accepts_remap: bool, now: float) -> DeepHealth:
    """Return the health after a restart of lbctl.

    `reasons` are the reasons why the replica was ejected, or None if it was not.
    """
    failed = reasons is not None and _REMAP_FAILED in reasons
    remap_failure: RemapFailure = "accepted" if accepts_remap else "failed" if failed else ""
    health = DeepHealth(remap_failure=remap_failure, is_asleep=is_asleep)
    return health if reasons is None else health._replace(phase="out", reasons=reasons, since=now, ejections=1)


# ── One signal each ──────────────────────────────────────────────────────────────────────────────────────────────────


def _busy(observation: Observation) -> bool:
    values = observation.signals.values
    running, queue = values.get("running"), values.get("queue")
    in_flight = observation.requests.in_flight
    return bool(in_flight or (running is not None and running.value) or (queue is not None and queue.value))


def _reports_idle(observation: Observation) -> bool:
    values = observation.signals.values
    reported = [signal for name in ("running", "queue") if (signal := values.get(name)) is not None]
    return bool(reported) and not any(signal.value for signal in reported)


def _xids(
    rules: HealthRules, health: DeepHealth, signals: Signals
) -> tuple[frozenset[tuple[str, int]] | None, int | None]:
    """The gauge keeps the last XID forever, so only changes to a fatal XID count.

    The first observation does not count.
    """
    signal = signals.values.get("xid")
    if signal is None or (not signal.value and health.xids is _NO_XIDS):
        return health.xids, health.fatal_xid
    current = frozenset(signals.xids or ((("", int(signal.value)),) if signal.value else ())) or _NO_XIDS
    if health.xids is None or current == health.xids:
        return current, health.fatal_xid
    fatal = (code for _, code in sorted(current - health.xids) if code in rules.deep.fatal_xids)
    return current, next(fatal, health.fatal_xid)


def _remap_failure(health: DeepHealth, signals: Signals) -> RemapFailure:
    signal = signals.values.get("row_remap_failure")
    if signal is None:
        return health.remap_failure
    if not signal.value:
        return ""
    return health.remap_failure or "failed"


def _memory(rules: HealthRules, level: Level, observation: Observation) -> Level:
    limit = rules.deep.min_free_memory
    free = observation.signals.values.get("gpu_memory_free") if limit is not None else None
    if free is None or limit is None or observation.reserves_memory:
        return _WITHIN_LIMIT
    return _level(rules, level, free.value < limit, free.value >= limit * MEMORY_RECOVERY_FACTOR)


def _temperature(rules: HealthRules, level: Level, signal: Signal | None) -> Level:
    limit = rules.deep.max_temperature
    if signal is None or limit is None:
        return _WITHIN_LIMIT
    return _level(rules, level, signal.value > limit, signal.value <= limit - COOLING_MARGIN)


def _level(rules: HealthRules, level: Level, bad: bool, good: bool) -> Level:
    contradicts = good if level.exceeded else bad
    if not contradicts:
        return Level(level.exceeded) if level.contrary else level
    contrary = level.contrary + 1
    needed = rules.healthy_threshold if level.exceeded else rules.unhealthy_threshold
    return Level(not level.exceeded) if contrary >= needed else Level(level.exceeded, contrary)


def _complaints(
    rules: HealthRules,
    fatal_xid: int | None,
    remap_failure: RemapFailure,
    still_for: float,
    observation: Observation,
    memory: Level,
) -> tuple[str, ...]:
    """`still_for` is the number of seconds without progress while requests were in flight."""
    complaints: tuple[str, ...] = ()
    if fatal_xid is not None:
        complaints += (f"XID {fatal_xid}",)
    if remap_failure == "failed":
        complaints += (_REMAP_FAILED,)
    if still_for and rules.stalled_after is not None:
        certain = observation.signals.by_steps and not _reports_idle(observation)
        limit = rules.stalled_after * (1 if certain else UNCERTAIN_STALL_FACTOR)
        complaints += (_STALLED,) if still_for >= limit - _EARLY * rules.interval else ()
    return (*complaints, _LOW_MEMORY) if memory.exceeded else complaints


# ── Phases ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _ejected(health: DeepHealth, watch: ProgressWatch, now: float) -> DeepHealth:
    return health._replace(
        phase="out",
        reasons=health.complaints,
        since=now,
        initial_progress=watch.progress,
        fatal_xid=None,
        good_count=0,
        ejections=health.ejections + 1,
        ejection_denied=False,
    )


def _kept_at_floor(health: DeepHealth) -> DeepHealth:
    reasons = (*health.complaints, "not ejected, because too many replicas would be ejected")
    return health._replace(ejection_denied=True, reasons=reasons) if health.reasons != reasons else health


def _returned(health: DeepHealth, now: float) -> DeepHealth:
    return health._replace(phase="in", reasons=(), since=now, ejections=0, ejection_denied=False)


def _with_initial_progress(health: DeepHealth, watch: ProgressWatch) -> DeepHealth:
    """The health with the first known progress since the phase began."""
    is_first = health.initial_progress is None and watch.observed_at >= health.since
    return health._replace(initial_progress=watch.progress) if is_first else health


def _recovered(rules: HealthRules, health: DeepHealth, watch: ProgressWatch, now: float) -> DeepHealth:
    """Return the health of an ejected replica: in or on trial if it has recovered or enough time has passed."""
    health = _with_initial_progress(health, watch)
    progressed = watch.progress is not None and watch.progress != health.initial_progress
    if health.reasons == (_STALLED,) and health.good_count >= rules.healthy_threshold and progressed:
        return _returned(health, now)
    if health.remap_failure == "failed":
        return health
    pause = rules.ejection_time * min(health.ejections, MAX_BACKOFF) * (MAX_BACKOFF if health.complaints else 1)
    if now - health.since < pause:
        return health
    reasons = (f"on trial after: {health.reasons[0] if health.reasons else 'an ejection'}",)
    return health._replace(
        phase="trial", reasons=reasons, since=now, initial_progress=None, complaints=(), good_count=0
    )

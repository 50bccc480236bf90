"""Detects stalled engines: requests are in flight, but the engine is not making progress.

The deep health check ejects such a replica after `stalled_after`, but its requests fail until then. A picker can detect
this earlier, because it knows which prompts an engine has to compute. The picker's decision is provisional: it is
reversed at the first sign of progress.

An engine is considered stopped if its progress has not changed in at least three samples and for longer than all of
these times:

- `_AVOIDED_AFTER`, and a part of `stalled_after`, because an operator who sets a long time has slow engines.
- twice the usual silence of the engine, because some engines have long steps, or update their metrics page only every
  few seconds. The usual silence is the shortest of the last ones, so a stop does not change it.
- twice the longest recent silence of an engine in the pool, because engines pause from time to time. It counts up to
  `_MAX_LEARNED`: a silence that ends may have been a stop, and the next stop must be detected as quickly.
- twice the time in which the engine computes the prompts that it had when the silence began, because an engine without
  chunked prefill computes a prompt in a single step. A prompt also counts if its request is cancelled in the meantime,
  because the engine completes the step.

If an engine has reported more requests than the pickers had sent, some of its prompts are unknown, and the decision is
left to the deep health check. If the deep health check never ejects stalled replicas, no engine is considered stopped.

A metrics page may arrive late. A silence therefore begins when the request for the first page with this progress ends,
and lasts until the newest request starts.

If a stopped engine has no requests left, it cannot make progress. After some seconds, it is on trial: it gets one
request at a time until it makes progress or counts as stopped again.

Only engines that report requests in flight and progress in steps are observed. If more engines seem to have stopped
than have made progress since then, the cause is probably elsewhere, and none of them counts as stopped. Idle engines
are not evidence.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lbctl.pick.books import ReplicaLoad

_AVOIDED_AFTER = 1.4
"""Minimum time without progress, in seconds: longer than a one-second pause."""
_MIN_PART = 0.09
"""Minimum time without progress, as a fraction of `stalled_after` (default: 15 s)."""
_MIN_SAMPLES = 3
"""Minimum number of samples with the same progress."""
_FACTOR = 2.0
"""Multiplier of expected silences."""
_MAX_LEARNED = 1.0
"""Upper bound on the longest silence of a pool, in seconds."""
_HALF_LIFE = 180.0
"""Half-life of the longest silence, in seconds."""
_USUAL_OF = 8
"""Number of an engine's last silences of which the shortest is the usual one."""
_MAX_SPEED = 5000.0
"""Upper bound on an engine's speed, in prompt tokens per second. A measured speed may be too high, because the picker
does not know about all cached tokens, and tokens of a long prompt take longer to compute."""
_MIN_MOVES = 8
"""Number of progress changes required in a pool before its engines can be considered stopped, because the usual
silences are unknown until then."""
_SAME_STEP = 0.2
"""Prompts that arrive within this many seconds of the start of a step may be part of it."""
_FIRST_PAUSE, _MAX_PAUSE = 15.0, 120.0
"""Seconds after which a stopped replica with no requests in flight is on trial. The pause doubles each time."""
_MAX_TRIAL = 120.0
"""Seconds after which a trial ends if the replica has no requests: a standby may get none, and an engine that still
reports requests of clients that have gone would never get one."""
_EXPIRY = 15.0
"""Seconds without a sample after which a replica does not count as stopped or as on trial."""


class EngineProgress(NamedTuple):
    """A sample of an engine's metrics. Unknown values are None."""

    taken: float
    """Start time of the metrics-page request, in seconds."""
    progress: float | None
    """A number that changes with every engine step."""
    requests: float | None
    """Number of requests reported by the engine, excluding deferred ones."""
    restarted: bool = False
    """Whether the engine has restarted since the previous sample."""
    duration: float = 0.0
    """Duration of the metrics-page request, in seconds."""

    @property
    def ended(self) -> float:
        """End time of the metrics-page request, in seconds."""
        return self.taken + self.duration


@dataclass(slots=True)
class _Engine:
    """One engine's silence. Times are in seconds."""

    progress: float
    """The engine's progress in the newest sample."""
    moved_at: float
    """Time of the first sample that showed this progress."""
    since: float
    """Start of the silence: the end of this sample, or the first request after an idle period."""
    sampled: float
    """Time of the newest sample."""
    samples: int = 1
    """Number of samples in this silence."""
    silence: float = 0.0
    """Duration of the silence up to the newest sample."""
    is_idle: bool = True
    """Whether the engine had no requests in the newest sample."""
    unread: int = 0
    """Number of prompt tokens that the engine had to compute when the silence began."""
    has_unknown: bool = False
    """Whether the engine has reported requests during this silence that no picker had sent."""
    is_reported_busy: bool = False
    """Whether the sample that first showed this progress contained requests, so that more progress was expected."""
    has_moved: bool = False
    """Whether the engine's progress has ever changed."""
    last_silences: deque[float] = field(default_factory=lambda: deque(maxlen=_USUAL_OF))
    """Durations of the last periods without progress, whether or not pickers had requests in flight."""
    avoided_since: float | None = None
    """Time since which the engine has counted as stopped; None if it does not count as stopped."""
    is_on_trial: bool = False
    """Whether the engine has counted as stopped, then had no requests, and has made no progress since."""
    trial_since: float = 0.0
    """Time at which the last trial began."""
    pause: float = _FIRST_PAUSE
    """Seconds for which the engine is considered stopped even without requests."""

    @property
    def is_avoided(self) -> bool:
        """Whether the engine is considered stopped."""
        return self.avoided_since is not None

    def move(self, progress: float, sample: EngineProgress, *, is_idle: bool) -> None:
        """Record a change of progress."""
        if self.has_moved and self.is_reported_busy:
            self.last_silences.append(self.sampled - self.moved_at)
        self.is_reported_busy = bool(sample.requests)
        self.progress, self.moved_at, self.since = progress, sample.taken, sample.ended
        self.samples, self.silence, self.is_idle, self.has_moved = 1, 0.0, is_idle, True
        self.unread, self.avoided_since, self.is_on_trial, self.pause = 0, None, False, _FIRST_PAUSE

    def rest(self, sample: EngineProgress, *, has_trial: bool) -> None:
        """Record that it has no requests. After a pause, it does not count as stopped.

        `has_trial`: whether it is then on trial.
        """
        self.samples, self.silence, self.is_idle, self.unread = 0, 0.0, True, 0
        if self.avoided_since is None:
            self.since = sample.ended
            if sample.taken - self.trial_since >= _MAX_TRIAL:
                self.is_on_trial = False
        elif sample.taken - self.avoided_since >= self.pause:
            self.avoided_since, self.is_on_trial, self.pause = None, has_trial, min(2 * self.pause, _MAX_PAUSE)
            self.trial_since = sample.taken

    def stay(self, now: float, oldest: float) -> None:
        """Record that progress is unchanged while requests are in flight.

        `oldest`: the time at which the oldest known request was sent.
        """
        if self.is_idle:
            self.since, self.is_idle = max(self.since, oldest), False
        self.samples += 1
        self.silence = now - self.since


@dataclass(slots=True)
class _Pool:
    engines: dict[str, _Engine] = field(default_factory=dict)
    moves: int = 0
    """Number of times that progress has changed."""
    longest: float = 0.0
    """The longest silence that ended with progress, up to `_MAX_LEARNED`, as of `longest_at`."""
    longest_at: float = 0.0

    def expected(self, engine: _Engine, now: float) -> float:
        """Return the longest silence to expect of an engine, in seconds."""
        return max(min(engine.last_silences), self.longest * math.exp2((self.longest_at - now) / _HALF_LIFE))

    def ended(self, silence: float, now: float) -> None:
        """Record the end of an engine's silence."""
        self.moves += 1
        silence = min(silence, _MAX_LEARNED)
        if silence >= self.longest * math.exp2((self.longest_at - now) / _HALF_LIFE):
            self.longest, self.longest_at = silence, now

    def is_silent(self, engine: _Engine, speed: float, stalled_after: float, now: float) -> bool:
        """Return whether a busy engine's silence is longer than any expected silence. `speed`: tokens per second."""
        if not engine.last_silences or engine.has_unknown or self.moves < _MIN_MOVES or engine.samples < _MIN_SAMPLES:
            return False
        if engine.silence < max(_AVOIDED_AFTER, _MIN_PART * stalled_after, _FACTOR * self.expected(engine, now)):
            return False
        return not engine.unread or engine.silence * min(speed, _MAX_SPEED) > _FACTOR * engine.unread


class Stalls:
    """The engines in all pools."""

    def __init__(self) -> None:
        self.avoided: dict[str, frozenset[str]] = {}
        """Maps each pool to the replicas whose engines have stopped; pools without any are absent."""
        self.on_trial: dict[str, frozenset[str]] = {}
        """Maps each pool to the replicas that were in `avoided`, then had no requests for some time, and have made no
        progress since; pools without any are absent."""
        self._pools: dict[str, _Pool] = {}

    def last_progress(self, pool: str, replica: str, sample: EngineProgress) -> float:
        """Return the time of the last progress up to this sample, or the sample's own time if unknown."""
        engine = self._pools[pool].engines.get(replica) if pool in self._pools else None
        return sample.taken if engine is None or engine.progress != sample.progress else engine.moved_at

    def observe(
        self, pool: str, replica: str, sample: EngineProgress, load: ReplicaLoad, stalled_after: float | None
    ) -> bool:
        """Record a sample. Return whether the engine counts as stopped, or did until this sample.

        `load` is the work at the replica, already corrected with this sample. `stalled_after`: seconds without progress
        after which deep health ejects a replica; None: it never does.
        """
        observed = self._pools.setdefault(pool, _Pool())
        engine = observed.engines.get(replica)
        before, was_on_trial = engine is not None and engine.is_avoided, engine is not None and engine.is_on_trial
        if engine is None or sample.restarted:
            observed.engines.pop(replica, None)
            engine = None
        if sample.progress is not None and sample.requests is not None:
            if engine is None:
                engine = observed.engines[replica] = _Engine(sample.progress, sample.taken, sample.ended, sample.taken)
            else:
                is_avoided = replica in self.avoided.get(pool, ())
                _update(observed, engine, sample, load, stalled_after, is_avoided=is_avoided)
        has_stopped = before or (engine is not None and engine.is_avoided)
        if has_stopped or was_on_trial:
            self._refresh(pool)
        return has_stopped

    def expire(self, pools: Mapping[str, frozenset[str]], now: float) -> None:
        """Forget replicas that are not in `pools` (replica names by pool), and decisions without recent samples."""
        for pool, observed in list(self._pools.items()):
            names = pools.get(pool, frozenset())
            observed.engines = {name: engine for name, engine in observed.engines.items() if name in names}
            for engine in observed.engines.values():
                if now - engine.sampled > _EXPIRY:
                    engine.avoided_since, engine.is_on_trial = None, False
            self._refresh(pool)
            if not observed.engines:
                del self._pools[pool]

    def _refresh(self, pool: str) -> None:
        """Store the engines on trial, and the stopped ones.

        The latter count only if at least as many engines have made progress since all of them fell silent.
        """
        engines = self._pools[pool].engines
        names = frozenset(name for name, item in engines.items() if item.is_avoided)
        begun = max((engines[name].since for name in names), default=0.0)
        if names and len(names) <= sum(item.moved_at > begun for item in engines.values()):
            self.avoided[pool] = names
        else:
            self.avoided.pop(pool, None)
        on_trial = frozenset(name for name, item in engines.items() if item.is_on_trial)
        if on_trial:
            self.on_trial[pool] = on_trial
        else:
            self.on_trial.pop(pool, None)


def _update(
    pool: _Pool, engine: _Engine, sample: EngineProgress, load: ReplicaLoad, stalled_after: float | None,
    *, is_avoided: bool,
) -> None:  # fmt: skip
    """Update an engine with a sample. `is_avoided`: whether pickers send it no requests."""
    now = sample.taken
    is_idle = not sample.requests or not load.picked
    has_unknown = (sample.requests or 0) > load.picked
    if sample.progress is not None and sample.progress != engine.progress:
        pool.ended(engine.silence, now)
        engine.move(sample.progress, sample, is_idle=is_idle)
        engine.has_unknown = has_unknown
    elif is_idle:
        engine.rest(sample, has_trial=is_avoided)
        engine.has_unknown = has_unknown
    else:
        engine.has_unknown |= has_unknown
        engine.stay(now, load.oldest(now))
    engine.sampled = now
    if not is_idle:
        engine.unread = max(engine.unread, load.unread_before(engine.since + _SAME_STEP))
        if (
            stalled_after is not None
            and not engine.is_avoided
            and pool.is_silent(engine, load.speed, stalled_after, now)
        ):
            engine.avoided_since, engine.is_on_trial = now, False
    if stalled_after is None:
        engine.avoided_since, engine.is_on_trial = None, False

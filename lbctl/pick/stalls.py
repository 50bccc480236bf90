"""Detects stopped engines: requests are in flight, but the engine's progress does not change.

Deep health ejects such a replica after `stalled_after`, and until then its requests fail. A picker can decide earlier,
because it knows which prompts an engine has to compute. Its decision is soft: it ends with the first progress.

An engine has stopped if its progress stays the same for longer than all of these times:

- `_STOPPED_AFTER`; requests avoid it earlier, after `_AVOIDED_AFTER`, because a short detour costs little
- twice the longest silence of an engine in the pool that ended with progress, because some engines have long steps, or
  update their metrics page only every few seconds
- twice the time in which the engine computes the prompts that it had when the silence began, because an engine without
  chunked prefill computes a prompt in a single step

Only engines that report requests in flight and progress in steps are observed. If more engines seem to have stopped
than have made progress since then, the cause is probably elsewhere, and none of them counts. Idle engines are not
evidence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lbctl.pick.books import ReplicaLoad

_AVOIDED_AFTER, _STOPPED_AFTER = 0.9, 1.4
"""Minimum times without progress, in seconds: two samples; three samples, which is longer than a pause of one second.
"""
_FACTOR = 2.0
"""Factor on expected silences."""
_MAX_EXPECTED, _MAX_AFTER_STOP = 7.5, 2.0
"""Upper bounds on the longest silence, in seconds: after 15 s, deep health decides. The second one applies to an engine
that counted as stopped: it may stop again, or it was only slow."""
_HALF_LIFE = 300.0
"""Seconds after which the longest silence counts half."""
_MIN_MOVES = 8
"""Changes of progress in a pool before its engines can count as stopped: until then, the silences are unknown."""
_SAME_STEP = 0.2
"""Prompts that arrive up to this number of seconds after the beginning of a step may be part of it."""
_FIRST_PAUSE, _MAX_PAUSE = 15.0, 120.0
"""Seconds after which a stopped replica without requests gets new ones. The pause doubles each time."""
_EXPIRY = 15.0
"""Seconds without a sample after which a replica no longer counts as stopped."""


class EngineProgress(NamedTuple):
    """A sample of an engine. None: unknown."""

    taken: float
    """Time of the sample, in seconds."""
    progress: float | None
    """A number that changes with each step of the engine."""
    requests: float | None
    """Number of requests that the engine reports."""
    restarted: bool = False
    """Whether the engine has restarted since the previous sample."""


@dataclass(slots=True)
class _Engine:
    """The silence of one engine. Times are seconds."""

    progress: float
    """Its progress in the newest sample."""
    moved_at: float
    """Time of the first sample with this progress."""
    since: float
    """When the silence began: `moved_at`, or the first request after an idle time."""
    sampled: float
    """Time of the newest sample."""
    silence: float = 0.0
    """Duration of the silence up to the newest sample."""
    is_idle: bool = True
    """Whether it had no requests in the newest sample."""
    has_moved: bool = False
    """Whether its progress has ever changed."""
    avoided_since: float | None = None
    """Time since which it gets no requests; None: it gets them."""
    has_stopped: bool = False
    """Whether it counts as stopped."""
    pause: float = _FIRST_PAUSE
    """Seconds for which it counts as stopped even without requests."""

    @property
    def level(self) -> tuple[bool, bool]:
        """Whether requests avoid it, and whether it has stopped."""
        return self.avoided_since is not None, self.has_stopped

    def move(self, progress: float, now: float, *, is_idle: bool) -> None:
        """Record a change of progress."""
        self.progress, self.moved_at, self.since, self.silence = progress, now, now, 0.0
        self.is_idle, self.has_moved = is_idle, True
        self.avoided_since, self.has_stopped, self.pause = None, False, _FIRST_PAUSE

    def rest(self, now: float) -> None:
        """Record that it has no requests. After a pause, it gets new ones as a trial."""
        self.silence, self.is_idle = 0.0, True
        if not self.has_stopped:
            self.since, self.avoided_since = now, None
        elif self.avoided_since is not None and now - self.avoided_since >= self.pause:
            self.avoided_since, self.has_stopped, self.pause = None, False, min(2 * self.pause, _MAX_PAUSE)

    def stay(self, now: float, oldest: float) -> None:
        """Record the same progress with requests in flight. `oldest`: when the oldest known request was sent."""
        if self.is_idle:
            self.since, self.is_idle = max(self.since, oldest), False
        self.silence = now - self.since

    def judge(self, now: float, *, is_silent: bool) -> None:
        """Avoid it if it is silent for too long, or count it as stopped."""
        if is_silent and self.avoided_since is None:
            self.avoided_since = now
        self.has_stopped = self.has_stopped or (self.avoided_since is not None and self.silence >= _STOPPED_AFTER)


@dataclass(slots=True)
class _Pool:
    engines: dict[str, _Engine] = field(default_factory=dict)
    moves: int = 0
    """Number of changes of progress."""
    longest: float = 0.0
    """The longest silence that ended with progress, as of `longest_at`."""
    longest_at: float = 0.0

    def expected(self, now: float) -> float:
        """Return the longest silence to expect, in seconds."""
        return self.longest * math.exp2((self.longest_at - now) / _HALF_LIFE)

    def ended(self, engine: _Engine, now: float) -> None:
        """Record that the silence of an engine has ended."""
        self.moves += 1
        silence = min(engine.silence, _MAX_AFTER_STOP if engine.has_stopped else _MAX_EXPECTED)
        if silence >= self.expected(now):
            self.longest, self.longest_at = silence, now

    def is_silent(self, engine: _Engine, load: ReplicaLoad, now: float) -> bool:
        """Return whether the silence of a busy engine is longer than any expected one."""
        if not engine.has_moved or self.moves < _MIN_MOVES or engine.silence < _AVOIDED_AFTER:
            return False
        if engine.silence < _FACTOR * self.expected(now):
            return False
        tokens = load.unread_before(engine.since + _SAME_STEP)
        return not tokens or engine.silence * load.speed > _FACTOR * tokens


class Stalls:
    """The engines of all pools."""

    def __init__(self) -> None:
        self.avoided: dict[str, frozenset[str]] = {}
        """Pool → its replicas that get no requests; pools without any are absent."""
        self.stopped: dict[str, frozenset[str]] = {}
        """Pool → the replicas of these whose engines have stopped; pools without any are absent."""
        self._pools: dict[str, _Pool] = {}

    def last_progress(self, pool: str, replica: str, sample: EngineProgress) -> float:
        """Return the time of the last progress up to this sample; the time of the sample if it is not known."""
        engine = self._pools[pool].engines.get(replica) if pool in self._pools else None
        return sample.taken if engine is None or engine.progress != sample.progress else engine.moved_at

    def observe(self, pool: str, replica: str, sample: EngineProgress, load: ReplicaLoad) -> None:
        """Record a sample. `load` is the work at the replica, already corrected by this sample."""
        observed = self._pools.setdefault(pool, _Pool())
        engine = observed.engines.get(replica)
        before = engine.level if engine is not None else (False, False)
        if engine is None or sample.restarted:
            observed.engines.pop(replica, None)
            engine = None
        if sample.progress is not None and sample.requests is not None:
            if engine is None:
                engine = observed.engines[replica] = _Engine(sample.progress, sample.taken, sample.taken, sample.taken)
            else:
                _update(observed, engine, sample, load)
        level = engine.level if engine is not None else (False, False)
        if before != level or any(level):
            self._refresh(pool)

    def expire(self, pools: Mapping[str, frozenset[str]], now: float) -> None:
        """Forget replicas that are not in `pools` (pool → names), and decisions without recent samples."""
        for pool, observed in list(self._pools.items()):
            names = pools.get(pool, frozenset())
            observed.engines = {name: engine for name, engine in observed.engines.items() if name in names}
            for engine in observed.engines.values():
                if now - engine.sampled > _EXPIRY:
                    engine.avoided_since, engine.has_stopped = None, False
            self._refresh(pool)
            if not observed.engines:
                del self._pools[pool]

    def _refresh(self, pool: str) -> None:
        engines = self._pools[pool].engines
        _set(self.avoided, pool, {name for name, item in engines.items() if item.avoided_since is not None}, engines)
        _set(self.stopped, pool, {name for name, item in engines.items() if item.has_stopped}, engines)


def _set(by_pool: dict[str, frozenset[str]], pool: str, names: set[str], engines: Mapping[str, _Engine]) -> None:
    """Store the names of some engines, if at least as many have made progress since the silences of these began."""
    begun = max((engines[name].since for name in names), default=0.0)
    if names and len(names) <= sum(item.moved_at > begun for item in engines.values()):
        by_pool[pool] = frozenset(names)
    else:
        by_pool.pop(pool, None)


def _update(pool: _Pool, engine: _Engine, sample: EngineProgress, load: ReplicaLoad) -> None:
    now = engine.sampled = sample.taken
    is_idle = not sample.requests or not load.picked
    if sample.progress is not None and sample.progress != engine.progress:
        pool.ended(engine, now)
        engine.move(sample.progress, now, is_idle=is_idle)
    elif is_idle:
        engine.rest(now)
    else:
        engine.stay(now, load.oldest(now))
        engine.judge(now, is_silent=pool.is_silent(engine, load, now))

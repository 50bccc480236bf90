"""Compares the prompt tokens that pickers expected in engine caches with those that the engines found there.

Both numbers are cumulative counts: the picker's report has the expected tokens of all pickers, and telemetry has the
engines' own counts. If a count decreases, it was reset, and the comparison for its replica starts over. It also starts
over when an engine resumes reporting its counts, or when the number of lines changes: a worker was added or removed, or
one of its lines was missing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lbctl.signals.cached import SOURCES, CachedTokens

_INTERVAL = 10.0
"""Minimum time between two updates, in seconds."""
_STEPS = 3
"""Number of updates between two history entries."""
_MAX_AGE = 300.0 + _STEPS * _INTERVAL
"""Maximum age of a history entry, in seconds: `recent` covers five minutes."""
_LOW = 0.7
"""Ratio below which too few tokens were found. Estimates of prompt lengths can be wrong by up to 30 %."""
_MIN_EXPECTED = 10_000
"""Minimum number of expected tokens for this judgement."""


class CacheUse(NamedTuple):
    """Prompt tokens from caches."""

    expected: int
    """Tokens that the pickers expected in the caches."""
    found: int | None
    """Tokens that the engines found in their caches; None if no engine reports them."""
    by_source: Mapping[str, int]
    """Maps each source to the tokens found there. The map contains only the sources that engines report."""
    seconds: int = 0
    """Duration of the counted period, in seconds. For a pool, the longest period among its replicas."""

    @property
    def ratio(self) -> float | None:
        """Found tokens divided by expected tokens; None if one of them is unknown or nothing was expected."""
        return None if self.found is None or not self.expected else self.found / self.expected

    @property
    def is_low(self) -> bool:
        """Whether engines found far fewer tokens than the pickers expected."""
        return self.ratio is not None and self.ratio < _LOW and self.expected >= _MIN_EXPECTED


CacheUses = Mapping[str, Mapping[str, CacheUse]]
"""Maps each pool and replica to its tokens."""
Key = tuple[str, str]
"""Pool and replica."""


def total(uses: Iterable[CacheUse]) -> CacheUse:
    """Return the sum for a pool. If some engines report their tokens, only their replicas count."""
    rows = list(uses)
    known = [item for item in rows if item.found is not None]
    if not known:
        return CacheUse(sum(item.expected for item in rows), None, {}, max((item.seconds for item in rows), default=0))
    sources = [name for name in SOURCES if any(name in item.by_source for item in known)]
    return CacheUse(
        sum(item.expected for item in known),
        sum(item.found or 0 for item in known),
        {name: sum(item.by_source.get(name, 0) for item in known) for name in sources},
        max(item.seconds for item in known),
    )


@dataclass(slots=True)
class _Account:
    """The counts of one replica."""

    expected: int = 0
    found: int = 0
    by_source: dict[str, int] = field(default_factory=dict)
    unknown: int = 0
    """Found tokens that are not attributed to any source. The count never decreases, because an engine may update the
    total before the source."""
    reading: CachedTokens | None = None
    """The engine's counts at the last update; None if they were unknown."""
    has_reported: bool = False
    """Whether the engine has ever reported its counts."""
    history: deque[tuple[float, CacheUse]] = field(default_factory=deque)
    """Earlier counts with their times, oldest first."""

    def update(self, expected: int, reading: CachedTokens | None) -> None:
        before, self.reading = self.reading, reading
        if before is not None and reading is not None and before.origin != reading.origin:
            before = None
        if expected < self.expected or (before is None and reading is not None):
            self.history.clear()
        self.expected = expected
        if reading is None:
            return
        self.has_reported = True
        self.found += _growth(before.total if before else reading.total, reading.total)
        for source, count in reading.by_source.items():
            earlier = before.by_source.get(source, 0) if before else count
            self.by_source[source] = self.by_source.get(source, 0) + _growth(earlier, count)
        self.unknown = max(self.unknown, self.found - sum(self.by_source.values()))

    def total(self) -> CacheUse:
        return CacheUse(self.expected, self.found if self.has_reported else None, dict(self.by_source))

    def keep(self, now: float, *, is_step: bool) -> None:
        """Drop old counts from the history, and add the current ones if it is empty or at each step."""
        while self.history and now - self.history[0][0] > _MAX_AGE:
            self.history.popleft()
        if is_step or not self.history:
            self.history.append((now, self.total()))

    def recent(self, now: float) -> CacheUse:
        since, first = self.history[0]
        found = None if self.reading is None else self.found - (first.found or 0)
        by_source = {source: count - first.by_source.get(source, 0) for source, count in self.by_source.items()}
        return CacheUse(self.expected - first.expected, found, {} if found is None else by_source, round(now - since))


def _growth(before: float, after: float) -> int:
    return max(0, round(after - before))


def _with_unknown(account: _Account) -> CacheUse:
    use = account.total()
    return use if use.found is None else use._replace(by_source={**use.by_source, "unknown": account.unknown})


class CacheComparison:
    """The counts of all replicas of picked pools. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accounts: dict[Key, _Account] = {}
        self._process: int | None = None
        self._updated_at = float("-inf")
        self._updates = 0
        self.recent: CacheUses = {}
        """Tokens in the last five minutes, or since the comparison for a replica began."""

    def update(
        self, process: int, expected: Mapping[str, Mapping[str, int]],
        readings: Callable[[], Mapping[Key, CachedTokens | None]],
    ) -> None:  # fmt: skip
        """Use a picker's report, unless the last update was less than ten seconds ago.

        `process`: number of the picker process. `expected` maps each pool and replica to the tokens since its start.
        `readings` returns the engines' counts for every replica of the picked pools.
        """
        now = self._clock()
        if process == self._process and now - self._updated_at < _INTERVAL:
            return
        if process != self._process:
            self._accounts = {}
        self._process, self._updated_at = process, now
        self._accounts = {key: self._updated(key, expected, reading) for key, reading in readings().items()}
        self._updates += 1
        recent: dict[str, dict[str, CacheUse]] = {}
        for (pool, replica), account in self._accounts.items():
            account.keep(now, is_step=self._updates % _STEPS == 0)
            recent.setdefault(pool, {})[replica] = account.recent(now)
        self.recent = recent

    def use_pools(self, pools: Collection[str]) -> None:
        """Forget the tokens of all other pools."""
        self._accounts = {key: account for key, account in self._accounts.items() if key[0] in pools}
        self.recent = {pool: uses for pool, uses in self.recent.items() if pool in pools}

    def totals(self) -> Mapping[Key, CacheUse]:
        """Map each (pool, replica) pair to the tokens expected since the picker's start, and the tokens found.

        The sources include `unknown` if the engine reports its tokens.
        """
        return {key: _with_unknown(account) for key, account in self._accounts.items()}

    def _updated(self, key: Key, expected: Mapping[str, Mapping[str, int]], reading: CachedTokens | None) -> _Account:
        pool, replica = key
        account = self._accounts.get(key) or _Account()
        account.update(expected.get(pool, {}).get(replica, 0), reading)
        return account

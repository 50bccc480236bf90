"""The ledger of what the proxies report about their replicas: totals since the start, and the last minute.

A source adds what a proxy has counted since the source's last report, and replaces what the proxy says of this moment
(requests in flight, conditions). A proxy that has not reported for `STALE_AFTER` seconds counts as silent: its requests
of the last minute, its requests in flight and its conditions are unknown. Times are seconds on any one clock that never
goes back; each method takes the current time as its argument.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal, NamedTuple

WINDOW = 60.0
"""Seconds over which observed shares are computed."""
STALE_AFTER = 30.0
"""Seconds without a report after which a proxy counts as silent."""
_BUCKET = 5.0
"""Seconds of one part of the window."""


class ReplicaKey(NamedTuple):
    """A replica of a pool."""

    pool: str
    """The name of the pool."""
    replica: str
    """The name of the replica."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests of one replica at one proxy."""

    requests: int = 0
    """Requests that the replica was sent and that have ended."""
    errors: int = 0
    """Those among them that failed: a status of 500 or more, or a connection that failed or broke."""

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.requests + other.requests, self.errors + other.errors)

    def __sub__(self, other: Counts) -> Counts:
        return Counts(self.requests - other.requests, self.errors - other.errors)


NO_COUNTS = Counts()


@dataclass(frozen=True, slots=True)
class Condition:
    """What one proxy thinks of one replica."""

    state: Literal["up", "down", "ejected", "draining"]
    """up: it gets requests. down: the proxy's active check fails. ejected: its passive check has taken the replica out.
    draining: it gets no new requests."""
    reason: str = ""
    """The proxy's own words for the state, such as the result of its last check; empty where it gives none."""


@dataclass(slots=True)
class _Reports:
    """What one proxy has reported."""

    since: float
    """When it reported for the first time."""
    at: float = -inf
    """When it last reported its requests. An Envoy reports them and its conditions by different ways."""
    conditions_at: float = -inf
    """When it last reported its conditions."""
    totals: dict[ReplicaKey, Counts] = field(default_factory=dict)
    recent: deque[tuple[float, Counter[ReplicaKey]]] = field(default_factory=deque)
    """(end of the bucket, requests in it), the oldest first."""
    window: Counter[ReplicaKey] = field(default_factory=Counter)
    """The sum of `recent`."""
    in_flight: Mapping[ReplicaKey, int] = field(default_factory=dict)
    conditions: Mapping[ReplicaKey, Condition] = field(default_factory=dict)

    def expire(self, now: float) -> None:
        """Forget the requests of more than a minute ago."""
        while self.recent and self.recent[0][0] <= now - WINDOW:
            for key, count in self.recent.popleft()[1].items():
                self.window[key] -= count
                if not self.window[key]:
                    del self.window[key]


class TrafficLedger:
    """What each proxy has reported. A proxy is known by its name in the fleet, an Envoy by its node id."""

    def __init__(self) -> None:
        self._proxies: dict[str, _Reports] = {}

    def add(self, proxy: str, counts: Mapping[ReplicaKey, Counts], now: float) -> None:
        """Add what the proxy has counted since its last report. An empty mapping says that it reports, and is idle."""
        reports = self._reports(proxy, now)
        for key, each in counts.items():
            reports.totals[key] = reports.totals.get(key, NO_COUNTS) + each
        if not reports.recent or reports.recent[-1][0] <= now:
            reports.recent.append((now + _BUCKET, Counter()))
        requests = {key: each.requests for key, each in counts.items()}
        reports.recent[-1][1].update(requests)
        reports.window.update(requests)
        reports.expire(now)

    def set_in_flight(self, proxy: str, requests: Mapping[ReplicaKey, int], now: float) -> None:
        """Replace the requests that the proxy has at each replica now; a replica that is absent is unknown."""
        self._reports(proxy, now).in_flight = requests

    def set_conditions(self, proxy: str, conditions: Mapping[ReplicaKey, Condition], now: float) -> None:
        """Replace what the proxy thinks of each replica; a replica that is absent is unknown."""
        reports = self._proxies.setdefault(proxy, _Reports(now))
        reports.conditions, reports.conditions_at = conditions, now

    def lost(self, proxy: str) -> None:
        """Forget what the proxy says of this moment, since it does not answer; its counts stay."""
        if proxy in self._proxies:
            self._proxies[proxy].in_flight = {}
            self._proxies[proxy].conditions = {}

    def keep(self, proxies: Iterable[str]) -> None:
        """Forget every proxy but these."""
        kept = frozenset(proxies)
        self._proxies = {name: reports for name, reports in self._proxies.items() if name in kept}

    def reporting(self, now: float) -> frozenset[str]:
        """Return the proxies that report their requests and are not silent."""
        return frozenset(name for name, _ in self._current(now))

    def totals(self) -> dict[tuple[str, ReplicaKey], Counts]:
        """Return (proxy, replica) → what the proxy has counted since this process started, for every proxy."""
        return {(name, key): each for name, item in self._proxies.items() for key, each in item.totals.items()}

    def pool_totals(self) -> dict[str, Counts]:
        """Return pool → what all proxies have counted at its replicas since this process started."""
        totals: dict[str, Counts] = {}
        for (_, key), counts in self.totals().items():
            totals[key.pool] = totals.get(key.pool, NO_COUNTS) + counts
        return totals

    def recent(self, now: float, proxy: str | None = None) -> Counter[ReplicaKey]:
        """Return replica → requests in the last minute at one proxy, or at all, of those that are not silent."""
        requests: Counter[ReplicaKey] = Counter()
        for name, reports in self._current(now):
            if proxy in (None, name):
                reports.expire(now)
                requests.update(reports.window)
        return requests

    def shares(self, pool: str, now: float, proxy: str | None = None) -> Mapping[str, float]:
        """Return replica → its part of the pool's requests in the last minute, 0…1; empty without any request.

        A replica that had none is absent while others had some: its share is 0. `proxy`: of this proxy alone.
        """
        requests = {key.replica: count for key, count in self.recent(now, proxy).items() if key.pool == pool}
        total = sum(requests.values())
        return {replica: count / total for replica, count in requests.items()} if total else {}

    def rates(self, now: float) -> Mapping[ReplicaKey, float]:
        """Return replica → its requests per second in the last minute, or since a younger proxy reports.

        A replica that had none is absent.
        """
        rates: dict[ReplicaKey, float] = {}
        for _, reports in self._current(now):
            reports.expire(now)
            oldest = reports.recent[0][0] - _BUCKET if reports.recent else now
            seconds = max(_BUCKET, now - max(oldest, reports.since))
            for key, requests in reports.window.items():
                rates[key] = rates.get(key, 0.0) + requests / seconds
        return rates

    def in_flight(self, key: ReplicaKey, now: float) -> int | None:
        """Return the requests at the replica, summed over the proxies that report them; None where none does."""
        values = [item.in_flight[key] for _, item in self._current(now) if key in item.in_flight]
        return sum(values) if values else None

    def conditions(self, key: ReplicaKey, now: float) -> Mapping[str, Condition]:
        """Return proxy → what it thinks of the replica, for the proxies that report it."""
        return {
            name: item.conditions[key]
            for name, item in self._proxies.items()
            if key in item.conditions and now - item.conditions_at <= STALE_AFTER
        }

    def _reports(self, proxy: str, now: float) -> _Reports:
        """Return the reports of a proxy that reports its requests now."""
        reports = self._proxies.setdefault(proxy, _Reports(now))
        reports.at = now
        return reports

    def _current(self, now: float) -> Iterator[tuple[str, _Reports]]:
        return ((name, item) for name, item in self._proxies.items() if now - item.at <= STALE_AFTER)

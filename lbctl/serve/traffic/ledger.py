"""The ledger of the proxies' reports about their replicas: totals since startup, and the last minute.

A source adds a proxy's counts since the source's last report, and replaces the current values (requests in flight and
conditions). Error responses that a proxy generates itself, without a replica, are counted per pool. A proxy that has
not reported for `STALE_AFTER` seconds is considered silent: its requests in the last minute, its requests in flight and
its conditions are unknown. Times are in seconds on any monotonic clock; each method takes the current time as an
argument.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple, TypeVar

from lbctl.control.analysis.latency import LatencyHistogram
from lbctl.control.replica_state import ReplicaCondition
from lbctl.ir.rollout_metrics import LatencyKey

WINDOW = 60.0
"""Seconds over which observed shares are computed."""
SHORT_WINDOW = 15.0
"""Length of the window, in seconds, used to detect a pool that returns only errors."""
STALE_AFTER = 30.0
"""Seconds without a report after which a proxy is considered silent."""
_BUCKET = 5.0
"""Duration of one of the window's buckets, in seconds."""


class ReplicaKey(NamedTuple):
    """One of a pool's replicas."""

    pool: str
    replica: str


@dataclass(frozen=True, slots=True)
class Counts:
    """One replica's requests at one proxy."""

    requests: int = 0
    """Requests that were sent to the replica and have ended."""
    errors: int = 0
    """Failed requests: those with a status of 500 or higher, or whose connection failed or broke."""

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.requests + other.requests, self.errors + other.errors)

    def __sub__(self, other: Counts) -> Counts:
        return Counts(self.requests - other.requests, self.errors - other.errors)


NO_COUNTS = Counts()
Latencies = Mapping[LatencyKey, Mapping[int, int]]
"""Maps each measured latency and histogram bucket to the number of requests."""


class Unanswered(NamedTuple):
    """The requests at a replica since its last successful response."""

    since: float
    """Time at which one of these requests was first reported as in flight or ended."""
    requests: int
    """Number of these requests that have ended."""
    newest: float
    """Time at which one of these requests was most recently reported."""


class _Bucket(NamedTuple):
    """A proxy's reports over a few seconds."""

    end: float
    """End time of the bucket."""
    requests: Counter[ReplicaKey]
    errors: Counter[ReplicaKey]
    own_errors: Counter[str]
    first_bytes: dict[ReplicaKey, Counter[int]]


_K = TypeVar("_K")


def _subtract(totals: Counter[_K], counts: Counter[_K]) -> None:
    for key, count in counts.items():
        totals[key] -= count
        if not totals[key]:
            del totals[key]


@dataclass(slots=True)
class _Reports:
    """One proxy's reports."""

    since: float
    """Time of the proxy's first report."""
    at: float = -inf
    """Time at which the proxy last reported its requests. An Envoy reports its requests and its conditions in different
    ways."""
    conditions_at: float = -inf
    """Time at which the proxy last reported its conditions."""
    totals: dict[ReplicaKey, Counts] = field(default_factory=dict)
    own_errors: Counter[str] = field(default_factory=Counter)
    """Maps each pool to the number of requests that the proxy itself answered with an error, without a replica."""
    latencies: dict[LatencyKey, Counter[int]] = field(default_factory=dict)
    """Maps each measured latency and bucket to the number of requests since this process started."""
    recent: deque[_Bucket] = field(default_factory=deque)
    """The proxy's reports in the last minute, oldest first."""
    window: Counter[ReplicaKey] = field(default_factory=Counter)
    """The requests in `recent`."""
    failed: Counter[ReplicaKey] = field(default_factory=Counter)
    """The requests in `recent` that failed."""
    refused: Counter[str] = field(default_factory=Counter)
    """Maps each pool to the number of errors in `recent` that the proxy generated itself."""
    first_bytes: dict[ReplicaKey, Counter[int]] = field(default_factory=dict)
    """Maps each replica (or pool, with an empty replica name) and time-to-first-byte bucket to its number of
    requests."""
    answered: dict[ReplicaKey, float] = field(default_factory=dict)
    """Time at which the proxy last reported a request answered by the replica."""
    unanswered: dict[ReplicaKey, Unanswered] = field(default_factory=dict)
    """Maps each replica to the requests sent to it since its last response."""
    streams: dict[ReplicaKey, int] = field(default_factory=dict)
    """Maps each replica to the requests in flight whose responses may already have started when a response was last
    reported, or at the first report."""
    in_flight: Mapping[ReplicaKey, int] = field(default_factory=dict)
    in_flight_at: float = -inf
    """Time at which the proxy last reported its requests in flight."""
    conditions: Mapping[ReplicaKey, ReplicaCondition] = field(default_factory=dict)
    """Conditions other than `up`."""
    judged: Collection[ReplicaKey] = ()
    """Replicas whose condition the proxy has reported."""

    def add_unanswered(self, key: ReplicaKey, requests: int, now: float) -> None:
        """Add requests that ended while no response started, except those whose responses may have started earlier."""
        streams = min(self.streams.get(key, 0), requests)
        if streams:
            self.streams[key] -= streams
        if requests > streams:
            before = self.unanswered.get(key, Unanswered(now, 0, now))
            self.unanswered[key] = Unanswered(before.since, before.requests + requests - streams, now)

    def expire(self, now: float) -> None:
        """Drop requests that are more than a minute old."""
        while self.recent and self.recent[0].end <= now - WINDOW:
            bucket = self.recent.popleft()
            _subtract(self.window, bucket.requests)
            _subtract(self.failed, bucket.errors)
            _subtract(self.refused, bucket.own_errors)
            for key, counts in bucket.first_bytes.items():
                _subtract(self.first_bytes[key], counts)
                if not self.first_bytes[key]:
                    del self.first_bytes[key]

    def newest(self, now: float) -> _Bucket:
        """Return the current bucket."""
        if not self.recent or self.recent[-1].end <= now:
            self.recent.append(_Bucket(now + _BUCKET, Counter(), Counter(), Counter(), {}))
        return self.recent[-1]


class TrafficLedger:
    """All proxies' reports.

    A proxy is identified by its name in the fleet, except for an Envoy, which is identified by its node ID.
    """

    def __init__(self) -> None:
        self.requests = Counter[str]()
        """Maps each pool to all requests since this process started, including those at proxies and replicas that have
        since been removed."""
        self._answered = Counter[ReplicaKey]()
        """Maps each replica to its requests that have ended without an error since this process started."""
        self._proxies: dict[str, _Reports] = {}
        self._in_flight: dict[ReplicaKey, tuple[int, int]] = {}
        """Maps each replica to its requests in flight and the number of proxies that report them."""
        self._troubled: dict[ReplicaKey, dict[str, ReplicaCondition]] = {}
        """Maps each replica and proxy to its condition if it is not `up`."""
        self._looked_at = -inf
        """Time of the last search for silent proxies."""

    def add(
        self,
        proxy: str,
        counts: Mapping[ReplicaKey, Counts],
        now: float,
        answered: Collection[ReplicaKey] | None = None,
    ) -> None:
        """Add a proxy's counts since its last report. An empty mapping means that the proxy is reporting but is idle.

        `answered`: the replicas that have started a response without an error. If the proxy does not count responses,
        `answered` is None, and each request that ended without an error is considered answered. Otherwise, such a
        request may have ended because its client disconnected.
        """
        reports = self._reports(proxy, now)
        if answered is None:
            answered = {key for key, each in counts.items() if each.requests > each.errors}
        for key in answered:
            reports.answered[key] = now
            reports.unanswered.pop(key, None)
        for key, each in counts.items():
            reports.totals[key] = reports.totals.get(key, NO_COUNTS) + each
            self.requests[key.pool] += each.requests
            self._answered[key] += each.requests - each.errors
            if key not in answered:
                reports.add_unanswered(key, each.requests, now)
        newest = reports.newest(now)
        requests = {key: each.requests for key, each in counts.items()}
        errors = {key: each.errors for key, each in counts.items() if each.errors}
        newest.requests.update(requests)
        newest.errors.update(errors)
        reports.window.update(requests)
        reports.failed.update(errors)
        reports.expire(now)

    def add_own_errors(self, proxy: str, errors: Mapping[str, int], now: float) -> None:
        """Add each pool's requests that the proxy itself answered with an error, without a replica.

        Such errors do not imply that the proxy reports its requests.
        """
        if not errors:
            return
        reports = self._proxies.setdefault(proxy, _Reports(now))
        for counter in (reports.own_errors, reports.newest(now).own_errors, reports.refused):
            counter.update(errors)
        reports.expire(now)

    def own_errors(self) -> dict[tuple[str, str], int]:
        """Map each (proxy, pool) pair to the errors that the proxy itself has generated since this process started."""
        return {(name, pool): count for name, item in self._proxies.items() for pool, count in item.own_errors.items()}

    def add_latencies(self, proxy: str, latencies: Latencies, now: float) -> None:
        """Add latencies reported by the proxy. They do not imply that the proxy reports its requests."""
        reports = self._proxies.setdefault(proxy, _Reports(now))
        for key, counts in latencies.items():
            reports.latencies.setdefault(key, Counter()).update(counts)

    def add_first_bytes(self, proxy: str, counts: Mapping[ReplicaKey, Mapping[int, int]], now: float) -> None:
        """Add times to first byte, by replica, or by pool with an empty replica name."""
        if not counts:
            return
        reports = self._proxies.setdefault(proxy, _Reports(now))
        newest = reports.newest(now)
        for key, buckets in counts.items():
            newest.first_bytes.setdefault(key, Counter()).update(buckets)
            reports.first_bytes.setdefault(key, Counter()).update(buckets)
        reports.expire(now)

    def first_bytes(self, now: float) -> dict[ReplicaKey, LatencyHistogram]:
        """Return the times to first byte in the last minute, by replica and by pool (with an empty replica name).

        A pool's times include requests whose replica is unknown.
        """
        counts: dict[ReplicaKey, Counter[int]] = {}
        for reports in self._proxies.values():
            reports.expire(now)
            for key, buckets in reports.first_bytes.items():
                for each in {key, ReplicaKey(key.pool, "")}:
                    counts.setdefault(each, Counter()).update(buckets)
        return {key: LatencyHistogram(buckets) for key, buckets in counts.items()}

    def latencies(self, wanted: Collection[LatencyKey]) -> dict[tuple[str, LatencyKey], LatencyHistogram]:
        """Map each (proxy, measured latency) pair to the latencies since this process started."""
        return {
            (name, key): LatencyHistogram(dict(reports.latencies[key]))
            for name, reports in self._proxies.items()
            for key in wanted
            if key in reports.latencies
        }

    def set_in_flight(self, proxy: str, requests: Mapping[ReplicaKey, int], now: float) -> None:
        """Replace the requests that the proxy currently has at each replica; absent replicas are unknown."""
        reports = self._reports(proxy, now)
        for key, count in requests.items():
            if key not in reports.streams or reports.answered.get(key) == now:
                reports.streams[key] = count
            elif count > reports.streams[key]:
                reports.unanswered[key] = reports.unanswered.get(key, Unanswered(now, 0, now))._replace(newest=now)
        self._replace_in_flight(reports, requests)
        reports.in_flight_at = now

    def set_conditions(self, proxy: str, conditions: Mapping[ReplicaKey, ReplicaCondition], now: float) -> None:
        """Replace each replica's condition at the proxy; absent replicas are unknown."""
        reports = self._proxies.setdefault(proxy, _Reports(now))
        self._replace_conditions(proxy, reports, conditions)
        reports.conditions_at = now

    def lost(self, proxy: str) -> None:
        """Remove the current values of a proxy that is not responding; its counts are kept."""
        reports = self._proxies.get(proxy)
        if reports is not None:
            self._replace_in_flight(reports, {})
            self._replace_conditions(proxy, reports, {})

    def keep(self, proxies: Iterable[str]) -> None:
        """Forget every proxy except these."""
        kept = frozenset(proxies)
        for name in self._proxies.keys() - kept:
            self.lost(name)
        self._proxies = {name: reports for name, reports in self._proxies.items() if name in kept}

    def keep_replicas(self, replicas: Collection[ReplicaKey], measured: Collection[LatencyKey]) -> None:
        """Drop the counts for all replicas, pools and latencies except these."""
        pools = {key.pool for key in replicas}
        self._answered = Counter({key: count for key, count in self._answered.items() if key in replicas})
        for reports in self._proxies.values():
            reports.own_errors = Counter({pool: count for pool, count in reports.own_errors.items() if pool in pools})
            reports.totals = {key: each for key, each in reports.totals.items() if key in replicas}
            reports.answered = {key: at for key, at in reports.answered.items() if key in replicas}
            reports.unanswered = {key: each for key, each in reports.unanswered.items() if key in replicas}
            reports.streams = {key: count for key, count in reports.streams.items() if key in replicas}
            reports.latencies = {key: each for key, each in reports.latencies.items() if key in measured}

    def reporting(self, now: float) -> frozenset[str]:
        """Return the proxies that report their requests and are not silent."""
        return frozenset(name for name, _ in self._current(now))

    def totals(self) -> dict[tuple[str, ReplicaKey], Counts]:
        """Map each (proxy, replica) pair to the proxy's counts since this process started, for all proxies."""
        return {(name, key): each for name, item in self._proxies.items() for key, each in item.totals.items()}

    def recent(self, now: float, proxy: str | None = None) -> Counter[ReplicaKey]:
        """Map each replica to its requests in the last minute at one proxy or at all proxies, excluding silent ones."""
        requests: Counter[ReplicaKey] = Counter()
        for name, reports in self._current(now):
            if proxy in (None, name):
                reports.expire(now)
                requests.update(reports.window)
        return requests

    def failed(self, now: float) -> Counter[ReplicaKey]:
        """Map each replica to its failed requests in the last minute at all proxies that are not silent."""
        errors: Counter[ReplicaKey] = Counter()
        for _, reports in self._current(now):
            reports.expire(now)
            errors.update(reports.failed)
        return errors

    def refused(self, now: float) -> Counter[str]:
        """Map each pool to the errors that proxies (excluding silent ones) generated themselves in the last minute."""
        errors: Counter[str] = Counter()
        for _, reports in self._current(now):
            reports.expire(now)
            errors.update(reports.refused)
        return errors

    def newest(self, now: float) -> Mapping[str, Counts]:
        """Map each pool to its requests in the last `SHORT_WINDOW` seconds at all proxies that are not silent.

        The counts include requests that the proxies themselves answered with an error.
        """
        requests, errors = Counter[str](), Counter[str]()
        for _, reports in self._current(now):
            for bucket in reports.recent:
                if bucket.end > now - SHORT_WINDOW + _BUCKET:
                    for key, count in bucket.requests.items():
                        requests[key.pool] += count
                    for key, count in bucket.errors.items():
                        errors[key.pool] += count
                    requests.update(bucket.own_errors)
                    errors.update(bucket.own_errors)
        return {pool: Counts(count, errors[pool]) for pool, count in requests.items()}

    def answered_at(self, key: ReplicaKey) -> float | None:
        """Return the time at which a proxy last reported a request answered by the replica; None if never."""
        return max((at for item in self._proxies.values() if (at := item.answered.get(key)) is not None), default=None)

    def unanswered(self, key: ReplicaKey, now: float) -> Unanswered | None:
        """Return the requests at the replica since its last response, at proxies that are not silent.

        Return None if there are none.
        """
        found = [each for _, item in self._current(now) if (each := item.unanswered.get(key)) is not None]
        if not found:
            return None
        since = max(min(each.since for each in found), self.answered_at(key) or -inf)
        return Unanswered(since, sum(each.requests for each in found), max(each.newest for each in found))

    def rates(self, now: float) -> Mapping[ReplicaKey, float]:
        """Map each replica to its requests per second in the last minute, or since the first report of a newer proxy.

        Replicas without requests are absent.
        """
        rates: dict[ReplicaKey, float] = {}
        for _, reports in self._current(now):
            reports.expire(now)
            oldest = reports.recent[0].end - _BUCKET if reports.recent else now
            seconds = max(_BUCKET, now - max(oldest, reports.since))
            for key, requests in reports.window.items():
                rates[key] = rates.get(key, 0.0) + requests / seconds
        return rates

    def answered(self, key: ReplicaKey) -> int:
        """Return the replica's requests that have ended without an error since this process started."""
        return self._answered[key]

    def in_flight(self, key: ReplicaKey, now: float) -> int | None:
        """Return the requests at the replica, summed across the proxies that report them.

        Return None if no proxy reports them.
        """
        self._forget_silent(now)
        counted = self._in_flight.get(key)
        return None if counted is None else counted[0]

    def in_flight_known_by(self, key: ReplicaKey, now: float) -> int:
        """Return the number of proxies that report the replica's requests in flight."""
        self._forget_silent(now)
        return self._in_flight.get(key, (0, 0))[1]

    def is_in_flight_newer(self, key: ReplicaKey, than: float) -> bool:
        """Return whether every proxy that reports the replica's requests in flight has reported since then."""
        return all(item.in_flight_at > than for item in self._proxies.values() if key in item.in_flight)

    def conditions(self, key: ReplicaKey, now: float, *, drained_until: float = -inf) -> Mapping[str, ReplicaCondition]:
        """Map each proxy at which the replica is not up to the replica's condition there.

        `drained_until`: the time at which the replica's drain ended. Earlier reports that it is draining are out of
        date.
        """
        return {
            name: condition
            for name, condition in self._troubled.get(key, {}).items()
            if now - self._proxies[name].conditions_at <= STALE_AFTER
            and (condition.state != "draining" or self._proxies[name].conditions_at > drained_until)
        }

    def passed_by(self, key: ReplicaKey, now: float) -> frozenset[str]:
        """Return the proxies that report the replica's condition as up."""
        return frozenset(
            name
            for name, reports in self._proxies.items()
            if key in reports.judged and key not in reports.conditions and now - reports.conditions_at <= STALE_AFTER
        )

    def judged_by(self, key: ReplicaKey, now: float) -> int:
        """Return the number of proxies that report any condition for the replica, including up."""
        return sum(
            key in reports.judged and now - reports.conditions_at <= STALE_AFTER for reports in self._proxies.values()
        )

    def _forget_silent(self, now: float) -> None:
        """Forget the requests in flight at proxies that have become silent."""
        if now == self._looked_at:
            return
        self._looked_at = now
        for reports in self._proxies.values():
            if reports.in_flight and now - reports.at > STALE_AFTER:
                self._replace_in_flight(reports, {})

    def _replace_in_flight(self, reports: _Reports, requests: Mapping[ReplicaKey, int]) -> None:
        before, reports.in_flight = reports.in_flight, requests
        totals = self._in_flight
        for key, count in requests.items():
            earlier = before.get(key)
            if earlier != count:
                total, proxies = totals.get(key, (0, 0))
                totals[key] = total + count - (earlier or 0), proxies + (earlier is None)
        for key in before.keys() - requests.keys():
            total, proxies = totals.pop(key)
            if proxies > 1:
                totals[key] = total - before[key], proxies - 1

    def _replace_conditions(
        self, proxy: str, reports: _Reports, conditions: Mapping[ReplicaKey, ReplicaCondition]
    ) -> None:
        troubled = {key: condition for key, condition in conditions.items() if condition.state != "up"}
        for key in reports.conditions.keys() - troubled.keys():
            del self._troubled[key][proxy]
            if not self._troubled[key]:
                del self._troubled[key]
        for key, condition in troubled.items():
            self._troubled.setdefault(key, {})[proxy] = condition
        reports.conditions, reports.judged = troubled, conditions.keys()

    def _reports(self, proxy: str, now: float) -> _Reports:
        """Return the reports of a proxy that is currently reporting its requests."""
        reports = self._proxies.setdefault(proxy, _Reports(now))
        reports.at = now
        return reports

    def _current(self, now: float) -> Iterator[tuple[str, _Reports]]:
        return ((name, item) for name, item in self._proxies.items() if now - item.at <= STALE_AFTER)

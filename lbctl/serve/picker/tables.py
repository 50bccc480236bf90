"""Builds the picker's tables from the result of `control.compose` and from measurements.

Proxies ignore their active checks when they send a request to a picked replica. These tables therefore include
everything that excludes a replica: drains, overrides, deep health, and the checks performed by lbctl and by the
proxies. Building the tables has no side effects and does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from lbctl.base.hosts import is_ip
from lbctl.control.check_thresholds import CheckState
from lbctl.control.compose import EffectiveReplica
from lbctl.control.replica_state import ReplicaCondition
from lbctl.control.slow_start import Key
from lbctl.ir.address import Address
from lbctl.ir.pools import Pool
from lbctl.pick.table import Candidate, PoolTable
from lbctl.picker.wire import EngineSample, ProxySample
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.telemetry.reports import ScrapeReport
from lbctl.serve.traffic.interface import Assigned
from lbctl.serve.traffic.ledger import ReplicaKey
from lbctl.signals import KINDS
from lbctl.signals import table as table_of
from lbctl.signals.cached import CachedTokens
from lbctl.signals.merge import Signals

_STALE = 3.0
"""Number of telemetry intervals after which a signal is considered unknown."""
_MIN_VALIDITY = 5.0
"""Minimum time, in seconds, for which a signal is valid."""


@dataclass(frozen=True, slots=True)
class FleetMeasurements:
    """Current measurements of the fleet. Times are in seconds on one clock."""

    now: float
    """The current time."""
    reports: Mapping[tuple[str, str], ScrapeReport] = field(default_factory=dict)
    """Maps each (pool, replica) pair to its newest signals."""
    checks: Mapping[tuple[str, str], CheckState] = field(default_factory=dict)
    """Maps each (pool, replica) pair to the result of lbctl's active checks."""
    conditions: Callable[[ReplicaKey], Mapping[str, ReplicaCondition]] = lambda _: {}
    """Returns a replica's condition at each proxy where it is not up."""
    judged_by: Callable[[ReplicaKey], int] = lambda _: 0
    """Returns the number of proxies that report any condition for a replica, including up."""
    assigned: Sequence[Assigned] = ()
    """The number of requests that each proxy has for each replica, if it reports this."""
    restarts: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Maps each (pool, replica) pair to the number of times its engine's counters have restarted; absent if they never
    have."""


def picked_pools(served: PublishedFleet) -> tuple[Pool, ...]:
    """Return the pools for which the picker chooses replicas, with the replicas known to the proxies."""
    return tuple(pool for pool in served.composed.snapshot.topology.pools if pool.balance.pick is not None)


def failing(pool: Pool, measured: FleetMeasurements) -> frozenset[str]:
    """Return the names of the replicas that are down according to checks by lbctl or the proxies.

    While a proxy is draining a replica, and shortly afterwards, it does not report the replica's check results.
    """
    return frozenset(
        item.name
        for item in pool.replicas
        if _failed_check(measured, ReplicaKey(pool.name, item.name))
        or _away(measured, ReplicaKey(pool.name, item.name), but="draining")
    )


def table(
    served: PublishedFleet, pool: Pool, measured: FleetMeasurements, since: Mapping[Key, float] = MappingProxyType({})
) -> PoolTable:
    """Return the table for a pool that uses the `pick` algorithm.

    `since`: the times at which replicas in slow start joined. With `fail_open`, checks do not exclude any replica if
    they would exclude all replicas.
    """
    names = {item.name for item in pool.replicas}
    effective = [item for item in served.composed.replicas(_whole(served, pool)) if item.replica.name in names]
    candidates = [
        _candidate(served, pool, item, measured, since.get((pool.name, item.replica.name, item.replica.address)))
        for item in effective
    ]
    if pool.fail_open and not any(item.fit for item in candidates):
        candidates = [
            replace(candidate, fit=True, reason="") if item.status == "in" else candidate
            for item, candidate in zip(effective, candidates, strict=True)
        ]
    return PoolTable.of(pool, candidates)


class NewSamples:
    """Keeps track of engine and proxy reports, so that each measurement is counted only once.

    A report after a failed scrape, or after a scrape of another source, repeats the engine's earlier values.
    """

    def __init__(self) -> None:
        self._sent: Mapping[tuple[str, str], tuple[float | None, ...] | None] = {}
        self._restarts: Mapping[tuple[str, str], int] = {}
        self._sent_of_proxies: dict[str, float] = {}

    def of(self, pools: Iterable[Pool], measured: FleetMeasurements) -> list[EngineSample]:
        """Return new engine measurements since the last call, and measurements of restarted engines."""
        names = [(pool.name, item.name) for pool in pools for item in pool.replicas]
        reports = {key: report for key in names if (report := measured.reports.get(key)) is not None}
        found = {key: _measurement(report) for key, report in reports.items()}
        restarted = {key for key in reports if measured.restarts.get(key, 0) > self._restarts.get(key, 0)}
        new = {key for key, measurement in found.items() if measurement not in (None, self._sent.get(key))}
        samples = [
            _sample(report, measured.now, restarted=key in restarted) if key in new else _restart(report)
            for key, report in reports.items()
            if key in new or key in restarted
        ]
        self._sent, self._restarts = found, dict(measured.restarts)
        return samples

    def of_proxies(self, pools: Iterable[Pool], measured: FleetMeasurements) -> list[ProxySample]:
        """Return new proxy reports since the last call."""
        names = {pool.name for pool in pools}
        new = [item for item in measured.assigned if self._sent_of_proxies.get(item.proxy) != item.at]
        self._sent_of_proxies = {item.proxy: item.at for item in measured.assigned}
        return [ProxySample(item.proxy, *item.key, item.requests) for item in new if item.key.pool in names]


def _measurement(report: ScrapeReport) -> tuple[float | None, ...] | None:
    """Return values that identify a measurement of an engine's requests; None if the report does not contain one."""
    times = _times(report)
    if any(at is not None for at in times):
        return times
    return None if report.first_tokens is None else (report.first_tokens,)


def _times(report: ScrapeReport) -> tuple[float | None, ...]:
    values = report.signals.values
    return tuple(item.at if (item := values.get(name)) is not None else None for name in ("running", "queue"))


def _sample(report: ScrapeReport, now: float, *, restarted: bool) -> EngineSample:
    signals = report.signals
    queue, deferred = _waiting(report)
    taken = min((at for at in _times(report) if at is not None), default=report.at)
    return EngineSample(
        report.pool,
        report.replica,
        signals.get("running"),
        queue,
        report.first_tokens,
        restarted,
        round(max(0.0, now - taken), 3),
        _measured(signals, "progress", taken) if signals.by_steps else None,
        _measured(signals, "ttft", taken),
        report.prompt_tokens,
        round(_duration(report), 3),
        deferred,
        signals.get("kv_cache"),
    )


def _duration(report: ScrapeReport) -> float:
    """Return the duration of the request for the page that contains the engine's progress, in seconds."""
    progress = report.signals.values.get("progress")
    return 0.0 if progress is None else report.sources[progress.source].seconds


def _waiting(report: ScrapeReport) -> tuple[float | None, float]:
    """Return the number of waiting requests that `running` does not include, and how many of them are deferred.

    The sum is compared with the number of requests sent by the picker.
    """
    running = report.signals.values.get("running")
    kind = "" if running is None else report.sources[running.source].kind
    if kind in KINDS and table_of(kind).running_includes_queue:
        return 0.0, 0.0
    queue, deferred = report.signals.get("queue"), report.signals.get("deferred") or 0.0
    return (None, 0.0) if queue is None else (queue + deferred, deferred)


def _measured(signals: Signals, name: str, taken: float) -> float | None:
    """Return a signal's value in the measurement taken at `taken`; None if it does not have one."""
    signal = signals.values.get(name)
    return signal.value if signal is not None and signal.at >= taken else None


def _restart(report: ScrapeReport) -> EngineSample:
    """Return the record for a restarted engine, without any earlier counts."""
    return EngineSample(report.pool, report.replica, None, None, None, restarted=True)


def _whole(served: PublishedFleet, pool: Pool) -> Pool:
    return next(item for item in served.composed.whole.topology.pools if item.name == pool.name)


def _candidate(
    served: PublishedFleet,
    pool: Pool,
    item: EffectiveReplica,
    measured: FleetMeasurements,
    started: float | None,
) -> Candidate:
    replica, reason = item.replica, _reason(pool, item, measured)
    signals = _signals(pool, replica.name, measured)
    return Candidate(
        name=replica.name,
        address=_address(replica.address, served.composed.snapshot.addresses),
        weight=item.weight.rate,
        fit=not reason,
        reason=reason,
        priority=replica.priority,
        region=replica.region,
        zone=replica.zone,
        queue=signals.get("queue"),
        kv=signals.get("kv_cache"),
        limit=pool.circuit_breaker.replica_max_requests,
        started=started,
    )


def _address(address: Address, resolved: Mapping[str, tuple[str, ...]]) -> str:
    """Return the address that proxies use for the replica, with its host name replaced by the first IP address."""
    if address.path or is_ip(address.host):
        return address.path or str(address)
    addresses = resolved.get(address.host, ())
    return str(Address(addresses[0], address.port)) if addresses else str(address)


def _reason(pool: Pool, item: EffectiveReplica, measured: FleetMeasurements) -> str:
    """Return the reason why the replica must not be picked; empty if it may be picked."""
    key = ReplicaKey(pool.name, item.replica.name)
    if item.status != "in":
        return "; ".join(item.reasons) or item.status
    return _failed_check(measured, key) or _away(measured, key)


def _failed_check(measured: FleetMeasurements, key: ReplicaKey) -> str:
    """Return the failure reported by lbctl's active check; empty if there is none."""
    check = measured.checks.get(key)
    return f"lbctl's active check is failing: {check.reason}" if check is not None and check.out else ""


def _away(measured: FleetMeasurements, key: ReplicaKey, but: str = "") -> str:
    """Return the reason why at least half of the proxies that report a condition avoid the replica; otherwise empty.

    `but`: a condition to ignore.
    """
    away = {name: item for name, item in measured.conditions(key).items() if item.state != but}
    if not away or 2 * len(away) < measured.judged_by(key):
        return ""
    name, condition = min(away.items())
    return f"{name} reports {condition.state}: {condition.reason}"


def cache_hits(served: PublishedFleet, measured: FleetMeasurements) -> dict[str, dict[str, float]]:
    """Map each pool and replica to the share of prompt tokens found in its engine's cache, if the engine reports it."""
    return {
        pool.name: {
            item.name: value
            for item in pool.replicas
            if (value := _signals(pool, item.name, measured).get("cache_hits")) is not None
        }
        for pool in picked_pools(served)
    }


def cached_tokens(served: PublishedFleet, measured: FleetMeasurements) -> dict[tuple[str, str], CachedTokens | None]:
    """Map each (pool, replica) pair to the tokens found in its engine's caches since its start; None if unknown."""
    reports = {
        (pool.name, item.name): _fresh(pool, item.name, measured)
        for pool in picked_pools(served)
        for item in pool.replicas
    }
    return {key: None if report is None else report.cached for key, report in reports.items()}


def _signals(pool: Pool, replica: str, measured: FleetMeasurements) -> Mapping[str, float]:
    report = _fresh(pool, replica, measured)
    return {} if report is None else {name: item.value for name, item in report.signals.values.items()}


def _fresh(pool: Pool, replica: str, measured: FleetMeasurements) -> ScrapeReport | None:
    """Return the newest report about a replica; None if it is missing or too old."""
    report = measured.reports.get((pool.name, replica))
    interval = pool.telemetry.interval / 1000 if pool.telemetry else 0.0
    return report if report is not None and measured.now - report.at <= max(_MIN_VALIDITY, _STALE * interval) else None

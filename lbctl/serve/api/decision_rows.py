"""API rows about telemetry: the replicas' signals, the resulting decisions, and the proxies that have applied them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from lbctl.api import schema
from lbctl.control.compose import Composed, EffectiveReplica, ForProxy
from lbctl.control.decisions import Decision
from lbctl.control.overrides import Override
from lbctl.control.slow_start import lowest
from lbctl.ir.pools import Pool, Telemetry
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot, drained_of, weights_of
from lbctl.serve.api import status_rows
from lbctl.serve.telemetry.reports import ScrapeReport, SourceState
from lbctl.signals.merge import Signal
from lbctl.signals.signal import SIGNALS
from lbctl.targets import target, xds_kinds

_LIGHT_LOAD = (
    "with fewer requests in flight than replicas, {title}'s least connections ignores weights: this replica then gets "
    "about as many requests as the other replicas"
)


def signals(
    pool: Pool,
    reports: Mapping[tuple[str, str], ScrapeReport],
    states: Mapping[str, tuple[SourceState, ...]],
    now: float,
) -> list[schema.ReplicaSignals]:
    """Return a row for each replica.

    `states` contains the last scrape results of each replica's sources; `now` is in seconds on their clock.
    """
    return [_signals(pool, name, reports.get((pool.name, name)), sources, now) for name, sources in states.items()]


@dataclass(frozen=True, slots=True)
class PublishedWeight:
    """One replica's weight at each stage, from the composed fleet to each proxy."""

    effective: EffectiveReplica
    """The replica with all overrides, ejections and drains applied."""
    quantised: Mapping[str, int]
    """Maps each kind of proxy to the replica's integer weight there; absent if the replica gets no new requests."""
    ramp: float = 1.0
    """The lowest slow-start factor that lbctl applies for a proxy without slow start."""
    picker_ramp: float = 1.0
    """The slow-start factor that the picker applies."""
    notes: tuple[str, ...] = ()
    """Notes about proxies that do not follow the weight exactly, because of their balancing algorithm."""
    share: float = 0.0
    """The replica's decided share of the pool's requests, 0…1."""


def published_weights(
    pool: Pool,
    composed: Composed,
    proxies: Iterable[Proxy],
    own: Mapping[str, ForProxy],
    shares: Mapping[str, float] | None = None,
    picker_ramps: Mapping[str, float] = MappingProxyType({}),
) -> Mapping[str, PublishedWeight]:
    """Map each replica to its weight.

    `own` maps each proxy to the snapshot that is composed only for it. `shares`: each replica's decided share over all
    proxies; by default, it is computed from the composed fleet. `picker_ramps` maps each replica to the picker's
    slow-start factor, if it is below 1.
    """
    given = ((item, own[item.name].snapshot if item.name in own else composed.snapshot) for item in proxies)
    quantised = _quantised(pool, given)
    ramps = lowest(item.factors for item in own.values()).get(pool.name, {})
    return {
        item.replica.name: PublishedWeight(
            item,
            {kind: weights[item.replica.name] for kind, weights in quantised.items() if item.replica.name in weights},
            ramps.get(item.replica.name, 1.0),
            picker_ramps.get(item.replica.name, 1.0),
            _notes(pool, item.replica.name, quantised),
            item.share if shares is None else shares.get(item.replica.name, 0.0),
        )
        for item in composed.replicas(pool)
    }


def _quantised(pool: Pool, given: Iterable[tuple[Proxy, Snapshot]]) -> dict[str, Mapping[str, int]]:
    """Map each kind of proxy and each replica to a weight.

    If the proxies of a kind differ, because each ramps separately, each has its own entry: "kind name".
    """
    cached: dict[tuple[str, int], Mapping[str, int]] = {}
    by_kind: dict[str, dict[str, Mapping[str, int]]] = {}
    for proxy, snapshot in given:
        key = proxy.kind, id(snapshot)
        if key not in cached:
            cached[key] = _integers(pool, proxy.kind, snapshot)
        by_kind.setdefault(proxy.kind, {})[proxy.name] = cached[key]
    quantised: dict[str, Mapping[str, int]] = {}
    for kind, by_name in sorted(by_kind.items()):
        first = next(iter(by_name.values()))
        same = all(each == first for each in by_name.values())
        quantised |= {kind: first} if same else {f"{kind} {name}": each for name, each in sorted(by_name.items())}
    return quantised


def _integers(pool: Pool, kind: str, snapshot: Snapshot) -> Mapping[str, int]:
    resting = drained_of(pool, snapshot)
    pairs = zip(pool.replicas, weights_of(pool, snapshot), strict=True)
    weights = {item.name: weight for item, weight in pairs if item.name not in resting}
    return dict(zip(weights, target(kind).quantised_weights(pool, tuple(weights.values())), strict=True))


def _notes(pool: Pool, replica: str, quantised: Mapping[str, Mapping[str, int]]) -> tuple[str, ...]:
    """Return a note for each kind of proxy that ranks an idle replica first regardless of its weight."""
    if pool.balance.algorithm not in ("least_request", "least_time"):
        return ()
    by_kind = {label.partition(" ")[0]: weights for label, weights in quantised.items()}
    return tuple(
        _LIGHT_LOAD.format(title=target(kind).title)
        for kind, weights in by_kind.items()
        if target(kind).prefers_idle_replicas and replica in weights and 2 * weights[replica] <= max(weights.values())
    )


def decision(
    item: Decision,
    published: PublishedWeight,
    overrides: Iterable[Override],
    acknowledged: schema.Acknowledged,
    now: float,
    sampled_by: str = "",
) -> schema.Decision:
    """Return a row of `/api/v1/decisions`. `now` is in seconds on the clock of the signals.

    `sampled_by`: the other member that scraped the signals; empty for this member.
    """
    weight = published.effective.weight
    about = [each for each in overrides if each.pool == item.pool and each.replica in ("", item.replica)]
    is_load = item.strategy == "composite"
    return schema.Decision(
        pool=item.pool,
        replica=item.replica,
        strategy=item.strategy,
        mode=item.mode,
        mode_words=item.mode_reason or None,
        capacity=item.capacity,
        signals={name: _decision_signal(name, signal, now) for name, signal in sorted(item.signals.items())},
        sampled_by=sampled_by or None,
        age=_optional(item.age),
        evidence_age=_optional(item.evidence_age),
        speed=None if is_load else _optional(item.signal),
        load=_optional(item.signal) if is_load else None,
        normalised=_rounded(item.normalised),
        across_types=_rounded(item.across),
        proposed=_optional(item.proposed),
        wished=_optional(item.proposed),
        clamped=_rounded(item.goal),
        limited=_rounded(item.limited),
        damped=_rounded(item.limited),
        beyond_deadband=_rounded(item.decided),
        decided=_rounded(item.weight.rate),
        published=_rounded(weight.rate),
        sent=_rounded(weight.rate),
        room=_rounded(weight.room),
        of_peers_speed=_rounded(weight.speed),
        held=_rounded(weight.held),
        share=_rounded(published.share),
        quantised=dict(published.quantised),
        notes=published.notes,
        ramp=_rounded(published.ramp),
        picker_ramp=_rounded(published.picker_ramp),
        verdict=item.verdict,
        reasons=item.reasons,
        overrides=tuple(override(each) for each in about),
        acknowledged=acknowledged,
    )


def override(item: Override) -> schema.Override:
    """Return the row of an override."""
    return schema.Override(
        kind=item.kind,
        pool=item.pool,
        replica=item.replica or None,
        value=item.value,
        route=item.route or None,
        shares=dict(item.shares),
        reason=item.reason or None,
        author=item.author or None,
        since=status_rows.when(item.since),
        until=status_rows.when(item.until),
    )


def acknowledged(proxies: Iterable[schema.Proxy], version: str) -> schema.Acknowledged:
    """Return which of the proxies that should have this version have accepted it.

    Every connected Envoy should have it, and so should every driven proxy, even if its driver fails.
    """
    by_xds = frozenset(xds_kinds())
    expected = [item for item in proxies if item.proxy is not None and should_have_it(item)]
    waiting = sorted({item.node for item in expected if not _has(item, version, by_xds)})
    return schema.Acknowledged(len(expected), len(expected) - len(waiting), tuple(waiting))


def should_have_it(proxy: schema.Proxy) -> bool:
    """Return whether the proxy is connected or driven, and so should have the published version."""
    return proxy.confirmed and proxy.state not in ("GONE", "NOT DRIVEN") and proxy.kind != "reader"


def _has(proxy: schema.Proxy, version: str, by_xds: frozenset[str]) -> bool:
    """Whether the proxy has this version now: a driven proxy may have lost a version that it had."""
    return proxy.last_good == version and (proxy.kind in by_xds or proxy.state == "SYNCED")


def sources(states: Iterable[tuple[str, SourceState]]) -> schema.SourceCounts:
    """Count the sources, and by pool those whose last scrape failed. `states`: (pool, state) of each source."""
    every = list(states)
    failing = Counter(pool for pool, state in every if state.reason)
    return schema.SourceCounts(len(every), failing.total(), dict(sorted(failing.items())))


def utilisation(pool: Pool, reports: Mapping[tuple[str, str], ScrapeReport]) -> float | None:
    """Return the utilisation of the pool, from 0 to 1; None if no replica reports.

    It is the capacity-weighted mean over the reporting replicas that are not drained; each counts with its cache or
    GPU utilisation, whichever is higher.
    """
    parts = []
    for replica in pool.replicas:
        report = reports.get((pool.name, replica.name))
        signals = (report.signals.get("kv_cache"), report.signals.get("gpu")) if report else ()
        values = [value for value in signals if value is not None]
        if values and not replica.drain:
            parts.append((replica.capacity, max(values)))
    total = sum(capacity for capacity, _ in parts)
    return sum(capacity * value for capacity, value in parts) / total if total else None


def queue(pool: Pool, reports: Mapping[tuple[str, str], ScrapeReport]) -> float | None:
    """Return the number of requests waiting in the pool's engines; None if no replica reports."""
    replica_reports = (reports.get((pool.name, item.name)) for item in pool.replicas)
    signals = [report.signals.get("queue") for report in replica_reports if report is not None]
    values = [value for value in signals if value is not None]
    return sum(values) if values else None


def stale_after(pool: Pool, replica: str) -> float:
    """Return the number of seconds for which the replica's signals stay fresh."""
    own = next((item.telemetry for item in pool.replicas if item.name == replica), None)
    return (own or pool.telemetry or Telemetry()).stale_after / 1000


def _signals(
    pool: Pool, name: str, report: ScrapeReport | None, states: tuple[SourceState, ...], now: float
) -> schema.ReplicaSignals:
    limit = stale_after(pool, name)
    signals = {**report.signals.stale, **report.signals.values} if report else {}
    return schema.ReplicaSignals(
        pool=pool.name,
        replica=name,
        stale_after=limit,
        signals={
            each: schema.Signal(
                value=signal.value,
                unit=SIGNALS[each].unit,
                age=_rounded(signal.age(now)),
                source=states[signal.source].kind,
                fresh=signal.age(now) <= limit,
            )
            for each, signal in sorted(signals.items())
            if signal.source < len(states)
        },
        sources=tuple(_source(item, now) for item in states),
    )


def _source(item: SourceState, now: float) -> schema.Source:
    return schema.Source(
        kind=item.kind,
        url=item.url,
        ok=item.ok,
        age=_optional(item.age(now)),
        reason=item.reason or None,
        message=item.message or None,
        bytes=item.size,
        seconds=_rounded(item.seconds),
        refused=tuple(schema.RefusedMetric(name, reason) for name, reason in item.refused),
    )


def _decision_signal(name: str, signal: Signal, now: float) -> schema.DecisionSignal:
    return schema.DecisionSignal(signal.value, SIGNALS[name].unit, _rounded(signal.age(now)))


def _rounded(value: float) -> float:
    return round(value, 6)


def _optional(value: float | None) -> float | None:
    return None if value is None else round(value, 6)

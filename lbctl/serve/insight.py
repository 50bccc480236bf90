"""What is known of replicas and what was made of it, as values that JSON knows: signals, decisions, who has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lbctl.control.decisions import Decision
from lbctl.control.overrides import Override
from lbctl.ir.pools import Pool, Telemetry
from lbctl.ir.weight import Weight
from lbctl.serve import report
from lbctl.serve.scrape_state import Report, SourceState
from lbctl.signals.merge import Signal
from lbctl.signals.signal import SIGNALS
from lbctl.targets.envoy.endpoints import envoy_weights
from lbctl.targets.haproxy.servers import haproxy_weights
from lbctl.targets.nginx.pool import nginx_weights

Row = dict[str, Any]
_DRIVEN = frozenset({"haproxy", "nginx"})
_LIGHT_LOAD = (
    "with fewer requests in flight than replicas HAProxy's least connections do not look at weights: "
    "this replica then gets about as many requests as the others"
)
_WEIGHTS = {"envoy": envoy_weights, "haproxy": haproxy_weights, "nginx": nginx_weights}


def signals(
    pool: Pool, reports: Mapping[tuple[str, str], Report], states: Mapping[str, tuple[SourceState, ...]], now: float
) -> list[Row]:
    """A row a replica. `states`: replica → its sources as last looked at; `now`: on their clock."""
    return [_signals(pool, name, reports.get((pool.name, name)), found, now) for name, found in states.items()]


@dataclass(frozen=True, slots=True)
class Told:
    """What the proxies are told of one replica. `share`: of the pool's rate; `whole`: kind of proxy → its own weight,
    none where that gets nothing new; `notes`: where a proxy's balancing makes something else of it."""

    weight: Weight
    share: float
    whole: Mapping[str, int]
    notes: tuple[str, ...] = ()


def told(pool: Pool, weights: tuple[Weight, ...], drained: frozenset[str], kinds: Iterable[str]) -> Mapping[str, Told]:
    """Replica → what the proxies of these kinds are told, before a ramp."""
    fit = [(item.name, weight) for item, weight in zip(pool.replicas, weights, strict=True) if item.name not in drained]
    names, there = [name for name, _ in fit], tuple([weight for _, weight in fit])
    whole = {kind: dict(zip(names, _WEIGHTS[kind](pool, there), strict=True)) for kind in kinds}
    total = sum(weight.rate for weight in weights) or 1.0
    return {
        item.name: Told(
            weight,
            weight.rate / total,
            {kind: each[item.name] for kind, each in whole.items() if item.name in each},
            _notes(pool, item.name, whole),
        )
        for item, weight in zip(pool.replicas, weights, strict=True)
    }


def _notes(pool: Pool, replica: str, whole: Mapping[str, Mapping[str, int]]) -> tuple[str, ...]:
    """HAProxy's least connections rank an idle server first whatever its weight."""
    weights = whole.get("haproxy", {})
    by_requests = pool.balance.algorithm in ("least_request", "least_time")
    small = by_requests and replica in weights and 2 * weights[replica] <= max(weights.values())
    return (_LIGHT_LOAD,) if small else ()


def decision(item: Decision, sent: Told, held: Iterable[Override], now: float) -> Row:
    mine = [each for each in held if each.pool == item.pool and each.replica in ("", item.replica)]
    return {
        "pool": item.pool,
        "replica": item.replica,
        "strategy": item.strategy,
        "mode": item.mode,
        "mode_words": item.mode_words or None,
        "capacity": item.capacity,
        "signals": {name: _signal(name, signal, now) for name, signal in sorted(item.signals.items())},
        "age": _short(item.age),
        "evidence_age": _short(item.evidence_age),
        "speed": _short(item.signal) if item.strategy != "composite" else None,
        "load": _short(item.signal) if item.strategy == "composite" else None,
        "normalised": _short(item.normalised),
        "across_types": _short(item.across),
        "wished": _short(item.wished),
        "clamped": _short(item.goal),
        "damped": _short(item.damped),
        "beyond_deadband": _short(item.sent),
        "decided": _short(item.weight.rate),
        "sent": _short(sent.weight.rate),
        "room": _short(sent.weight.room),
        "of_peers_speed": _short(sent.weight.speed),
        "held": _short(sent.weight.held),
        "share": _short(sent.share),
        "quantised": dict(sent.whole),
        "notes": list(sent.notes),
        "ramp": _short(item.ramp),
        "verdict": item.verdict,
        "words": list(item.words),
        "overrides": [override(each) for each in mine],
    }


def override(item: Override) -> Row:
    return {
        "kind": item.kind,
        "pool": item.pool,
        "replica": item.replica or None,
        "value": item.value,
        "reason": item.reason or None,
        "since": report.when(item.since),
        "until": report.when(item.until),
    }


def acknowledged(rows: Iterable[Mapping[str, Any]], version: str) -> Row:
    """Which of the proxies that should have this version have taken it: every Envoy that is connected, every other one
    that is driven, also while that fails."""
    here = [row for row in rows if row["proxy"] is not None and _should_have_it(row)]
    waiting = sorted({str(row["node"]) for row in here if not _has(row, version)})
    return {"proxies": len(here), "have_it": len(here) - len(waiting), "waiting": waiting}


def _should_have_it(row: Mapping[str, Any]) -> bool:
    if row["kind"] in _DRIVEN:
        return bool(row["state"] != "NOT DRIVEN")
    return bool(row["connected"]) and row["kind"] != "reader"


def _has(row: Mapping[str, Any], version: str) -> bool:
    """What a proxy that is driven had once it may have lost since."""
    return bool(row["last_good"] == version and (row["kind"] not in _DRIVEN or row["state"] == "SYNCED"))


def sources(states: Iterable[tuple[str, SourceState]]) -> Row:
    """(pool, source) → how many there are, how many failed when they were last looked at, and in which pools."""
    known = list(states)
    return {
        "total": len(known),
        "failing": sum(bool(state.reason) for _, state in known),
        "pools": dict(sorted(Counter(pool for pool, state in known if state.reason).items())),
    }


def utilisation(pool: Pool, reports: Mapping[tuple[str, str], Report]) -> float | None:
    """How full the pool is, from 0 to 1: the mean over the replicas that tell, by capacity, of the larger of their
    cache and their GPU. None where nobody tells."""
    parts = []
    for replica in pool.replicas:
        found = reports.get((pool.name, replica.name))
        told = [found.signals.get("kv_cache"), found.signals.get("gpu")] if found else []
        known = [value for value in told if value is not None]
        if known and not replica.drain:
            parts.append((replica.capacity, max(known)))
    total = sum(capacity for capacity, _ in parts)
    return sum(capacity * value for capacity, value in parts) / total if total else None


def queue(pool: Pool, reports: Mapping[tuple[str, str], Report]) -> float | None:
    """Requests that wait in the engines of the pool. None where nobody tells."""
    found = (reports.get((pool.name, item.name)) for item in pool.replicas)
    told = [item.signals.get("queue") for item in found if item is not None]
    known = [value for value in told if value is not None]
    return sum(known) if known else None


def stale_after(pool: Pool, replica: str) -> float:
    """Seconds."""
    own = next((item.telemetry for item in pool.replicas if item.name == replica), None)
    return (own or pool.telemetry or Telemetry()).stale_after / 1000


def _signals(pool: Pool, name: str, found: Report | None, states: tuple[SourceState, ...], now: float) -> Row:
    oldest = stale_after(pool, name)
    known = {**found.signals.stale, **found.signals.values} if found else {}
    return {
        "pool": pool.name,
        "replica": name,
        "stale_after": oldest,
        "signals": {
            each: {
                **_signal(each, signal, now),
                "source": states[signal.source].kind,
                "fresh": signal.age(now) <= oldest,
            }
            for each, signal in sorted(known.items())
            if signal.source < len(states)
        },
        "sources": [_source(item, now) for item in states],
    }


def _source(item: SourceState, now: float) -> Row:
    return {
        "kind": item.kind,
        "url": item.url,
        "ok": item.ok,
        "age": _short(item.age(now)),
        "reason": item.reason or None,
        "words": item.words or None,
        "bytes": item.size,
        "seconds": _short(item.seconds),
        "refused": [{"metric": name, "reason": reason} for name, reason in item.refused],
    }


def _signal(name: str, signal: Signal, now: float) -> Row:
    return {"value": signal.value, "unit": SIGNALS[name].unit, "age": _short(signal.age(now))}


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 6)

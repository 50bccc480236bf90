"""The tables for `lbctl status proxies|pools|signals`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from lbctl.api import schema
from lbctl.api.fields import Timestamp
from lbctl.base.printable import plain
from lbctl.cli.output import age, as_text, table_text

_SHORT = 12
"""Number of characters shown of a version, which is enough to distinguish versions."""
COLOURS: Mapping[str, str] = {
    "SYNCED": "green", "WAITING": "yellow", "STALE": "yellow", "NACKED": "red", "REFUSED": "red", "FAILING": "red",
    "leader": "green", "isolated": "red",
    "GONE": "bright_black", "NOT DRIVEN": "bright_black",
    "in": "green", "ramping": "cyan", "slow": "yellow", "hot": "yellow", "unknown": "yellow",
    "starting": "cyan", "down": "red", "ejected": "red",
    "draining": "magenta", "drained": "magenta", "removed": "bright_black", "asleep": "bright_black",
}  # fmt: skip
"""Maps the state of a proxy or a replica to its colour on a terminal."""
_HIGH = 1.3
"""Ratio of found to expected cached tokens above which the line explains the ratio."""
_PROXIES = ("NODE", "PROXY", "KIND", "STATE", "VERSION", "SINCE", "LACKS")
_TYPES = ("NODE", "PROXY", "TYPE", "STATE", "VERSION", "ACKED", "LAST GOOD", "SINCE", "LACKS")
_POOLS = (
    "POOL",
    "REPLICA",
    "STATE",
    "DECLARED",
    "DECIDED",
    "ACKNOWLEDGED",
    "OBSERVED",
    "ERRORS",
    "TTFB P50",
    "TTFB P99",
    "REASON",
)
_MORE_POOLS = (*_POOLS[:-1], "CACHED", "REQ/S", "IN FLIGHT", "WEIGHT", "ADDRESS", "PRIORITY", "ZONE", "REASON")
_MEMBERS = ("MEMBER", "ROLE", "EPOCH", "VERSION", "FILES", "POOLS", "LAG", "STORE", "API", "REMARKS")
_SIGNALS = ("POOL", "REPLICA", "SIGNAL", "VALUE", "UNIT", "AGE", "SOURCE", "REASON")


def proxies(rows: Sequence[schema.Proxy], form: str) -> str:
    """Return a row for each proxy or, in the `wide` format, a row for each of its resource types."""
    if form in ("json", "yaml"):
        return as_text(rows, form)
    if form == "wide":
        return table_text(_TYPES, (line for row in rows for line in _types(row)), COLOURS)
    return table_text(_PROXIES, map(_proxy, rows), COLOURS)


def pools(rows: Sequence[schema.Pool], form: str) -> str:
    """Return a row for each replica with its four shares. The `wide` format has more columns."""
    if form in ("json", "yaml"):
        return as_text(rows, form)
    head = _MORE_POOLS if form == "wide" else _POOLS
    unable = dict(item for row in rows for item in row.unable.items())
    unknown = [plain(f"the requests of {name} are not counted: {reason}") for name, reason in unable.items()]
    table = table_text(head, (line for row in rows for line in _replicas(row, head)), COLOURS)
    picks = [_picks(row.name, row.picks) for row in rows if row.picks is not None and row.picks.requests]
    cached = [_cached(row, row.cached) for row in rows if row.cached is not None and row.cached.expected]
    answers = map(_answers, (row for row in rows if row.errors is not None))
    is_wide = form == "wide"
    queues = [line for row in rows if row.queue for line in _queue(row.name, row.queue, is_wide=is_wide)]
    return "\n".join([table, *answers, *queues, *picks, *cached, *unknown])


def _picks(pool: str, row: schema.RecentPicks) -> str:
    """Return a line that states how many of the pool's requests in the last minute were picked by the picker."""
    return plain(
        f"{pool}: {share(row.share)} of the last minute's {row.requests} requests picked, the rest by `otherwise`"
    )


def _cached(pool: schema.Pool, row: schema.CachedTokens) -> str:
    """Return a line that states how many of the tokens expected in caches the engines found there."""
    period = "5 minutes" if row.seconds is None else age(row.seconds)
    expected = f"the {row.expected:,} prompt tokens that the picker expected in caches in the last {period}"
    if row.found is None:
        return plain(
            f"{pool.name}: engines found an unknown part of {expected}, because they report no current counts "
            "(see `lbctl status signals`; on a follower, ask the leader)"
        )
    whole = sum(row.sources.values())
    sources = ", ".join(f"{share(count / whole)} {source}" for source, count in row.sources.items() if count)
    places = f" ({sources})" if sources else ""
    compared = [item.cached for item in pool.replicas if item.cached is not None]
    known = sum(item.found is not None for item in compared)
    part = f"; only {known} of {len(compared)} replicas have current counts" if known < len(compared) else ""
    advice = f". A low ratio has one of these causes: {row.advice}" if row.advice else ""
    if row.ratio is not None and row.ratio > _HIGH:
        advice = ". A high ratio means that engines also found tokens of requests that this picker did not count"
    return plain(f"{pool.name}: engines found {share(row.ratio)} of {expected}{places}{part}{advice}")


def _queue(pool: str, row: schema.PoolQueue, *, is_wide: bool) -> Iterator[str]:
    """Yield a line about the pool's requests that are waiting or were rejected in the last minute, if any.

    With `is_wide`, always yield the line, with all counts, and another line with the tenants' waiting times.
    """
    parts = [_waiting(row, is_wide=is_wide)] if row.waiting or is_wide else []
    if refused := row.refused_full + row.refused_late:
        subject = str(refused) if parts else _counted(refused, "request")
        parts.append(f"{subject} {'was' if refused == 1 else 'were'} rejected in the last minute: {_rejections(row)}")
    if is_wide and row.released:
        parts.append(f"{row.released} got a replica in the last minute, after {seconds(row.mean_wait_seconds)} (mean)")
    if is_wide and row.left:
        parts.append(f"{_counted(row.left, 'client')} left in the last minute")
    if parts:
        yield plain(f"{pool}: {'; '.join(parts)}")
    if is_wide and row.waits:
        waits = (f"{name} {seconds(item.mean_seconds)} ({item.requests})" for name, item in row.waits.items())
        yield plain(f"{pool}: mean waits of tenants in the last minute (requests): {', '.join(waits)}")


def _waiting(row: schema.PoolQueue, *, is_wide: bool) -> str:
    """Return the number of waiting requests and the largest tenant or, with `is_wide`, all tenants and priorities."""
    tenants = sorted(row.tenants.items(), key=lambda item: -item[1])
    groups = [f"{count} of tenant {name}" for name, count in (tenants if is_wide else tenants[:1])]
    if is_wide:
        groups += [f"{count} with priority {name}" for name, count in row.priorities.items() if count]
    listed = f" ({', '.join(groups)})" if groups else ""
    return f"{_counted(row.waiting, 'request')} {'waits' if row.waiting == 1 else 'wait'} for a replica{listed}"


def _rejections(row: schema.PoolQueue) -> str:
    """Return the reason why requests were rejected."""
    full, late = f"more than {row.max_requests} waited", f"the wait exceeded {seconds(row.max_wait_seconds)}"
    if row.refused_full and row.refused_late:
        return f"{full} ({row.refused_full}), {late} ({row.refused_late})"
    return full if row.refused_full else late


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _answers(row: schema.Pool) -> str:
    """Return a line about the pool's responses in the last minute."""
    p50, p99 = seconds(row.first_byte_p50), seconds(row.first_byte_p99)
    times = "" if row.first_byte_p50 is None else f", first byte after {p50} (p50), {p99} (p99)"
    return plain(f"{row.name}: {share(row.errors)} of the last minute's requests failed{times}")


def signals(rows: Sequence[schema.ReplicaSignals], form: str) -> str:
    """Return a row for each signal of each replica, and a row for each page without signals."""
    if form in ("json", "yaml"):
        return as_text(rows, form)
    return table_text(_SIGNALS, (line for row in rows for line in _signals(row)))


def members(document: schema.Members, form: str) -> str:
    """Return a row for each control-plane member."""
    if form in ("json", "yaml"):
        return as_text(document, form)
    if document.store is None:
        return "there is one control plane: the fleet has no control.store"
    rows = table_text(_MEMBERS, map(_member, document.members), COLOURS)
    return rows if document.leader else f"{rows}\nthere is no leader: {document.store}"


def _member(row: schema.Member) -> tuple[str, ...]:
    remarks = [
        row.problem or "",
        "" if row.in_step else "its snapshot differs from the leader's",
        "its files differ from the leader's" if row.files_differ else "",
        f"its clock is {abs(row.clock):.1f} s {'behind' if row.clock > 0 else 'ahead'}" if abs(row.clock) > 1 else "",
    ]
    return (
        row.name, row.role, str(row.epoch), row.snapshot[:_SHORT] or "-", row.digest[:_SHORT], str(len(row.pools)),
        "-" if row.lag is None else f"{row.lag:.1f} s",
        "-" if row.latency is None else f"{row.latency * 1000:.1f} ms",
        row.api or "-", "; ".join(filter(None, remarks)) or "-",
    )  # fmt: skip


# ── Proxies ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _proxy(row: schema.Proxy) -> tuple[str, ...]:
    has = row.last_good[:_SHORT] or "-"
    refused = getattr(row, "reports_refused", "")
    missing = [*lacks(row), *([f"its requests are not counted: {refused}"] if refused else [])]
    return (*_identity(row), row.kind, row.state, has, _since(_newest(row)), "; ".join(missing) or "-")


def lacks(row: schema.Proxy) -> Iterator[str]:
    """Yield the reasons why a proxy is not in sync, which are its own reason and each missing resource type."""
    if row.reason:
        yield row.reason
    if not row.connected and row.state == "GONE":
        yield "disconnected"
        return
    if not row.confirmed:
        yield "unconfirmed: no certificate and no accepted update yet"
    for kind in row.types:
        if kind.state == "NACKED":
            yield f"{kind.type}: {_rejection(row, kind)}"
        elif kind.state == "STALE":
            yield f"{kind.type}: has {kind.acked[:_SHORT] or 'nothing'}, was sent {kind.offered[:_SHORT] or 'nothing'}"
        elif kind.state == "WAITING":
            yield f"{kind.type}: it requested resources that do not exist"


def _newest(row: schema.Proxy) -> Timestamp | None:
    """Return the time at which the last of the proxy's types entered the proxy's state."""
    times = [kind.since for kind in row.types if kind.since is not None and kind.state == row.state]
    return max(times, default=row.since)


def _identity(row: schema.Proxy) -> tuple[str, str]:
    return row.node, "(reader)" if row.kind == "reader" else row.proxy or "-"


def _types(row: schema.Proxy) -> Iterator[tuple[str, ...]]:
    """Yield a line for each type, or a single line for a node that has not requested anything."""
    good = row.last_good[:_SHORT] or "-"
    if not row.types or row.reason:
        yield (*_identity(row), "-", row.state, "-", "-", good, _since(row.since), row.reason)
        return
    for kind in row.types:
        state = kind.state if row.connected else "GONE"
        versions = (kind.offered[:_SHORT] or "-", kind.acked[:_SHORT] or "-")
        rejection = _rejection(row, kind) if kind.state == "NACKED" else ""
        yield (*_identity(row), kind.type, state, *versions, good, _since(kind.since), rejection)


def _since(since: Timestamp | None) -> str:
    return age(time.time() - datetime.fromisoformat(since).timestamp() if since else None)


def _rejection(row: schema.Proxy, kind: schema.ResourceTypeStatus) -> str:
    """Return the reason why a proxy rejected a type, with positions in the YAML if they are known."""
    last = next((item for item in row.nacks if item.type == kind.type), None)
    return " ".join(last.findings) if last and last.findings else kind.message


# ── Pools and signals ────────────────────────────────────────────────────────────────────────────────────────────────


def _replicas(row: schema.Pool, head: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield these columns' cells for each replica in a pool, or a single line for an empty pool."""
    if not row.replicas:
        yield (row.name, *("-" for _ in head[1:]))
    for item in row.replicas:
        cells = _replica(row.name, item)
        yield tuple(cells[name] for name in head)


def _replica(pool: str, row: schema.Replica) -> dict[str, str]:
    return {
        "POOL": pool,
        "REPLICA": row.name,
        "STATE": row.state,
        "DECLARED": share(row.declared),
        "DECIDED": share(row.share),
        "ACKNOWLEDGED": share(row.acknowledged),
        "OBSERVED": share(row.observed),
        "ERRORS": share(row.errors),
        "TTFB P50": seconds(row.first_byte_p50),
        "TTFB P99": seconds(row.first_byte_p99),
        "CACHED": _cached_ratio(row.cached),
        "REQ/S": "-" if row.requests_per_second is None else f"{row.requests_per_second:.3g}",
        "IN FLIGHT": "-" if row.in_flight is None else str(row.in_flight),
        "WEIGHT": f"{row.weight:g}",
        "ADDRESS": row.address,
        "PRIORITY": str(row.priority),
        "ZONE": row.zone or row.region or "-",
        "REASON": row.state_reason or "-",
    }


def _cached_ratio(row: schema.CachedTokens | None) -> str:
    if row is None or not row.expected:
        return "-"
    return "unknown" if row.ratio is None else share(row.ratio)


def share(part: float | None) -> str:
    """Format a fraction from 0 to 1 as a percentage, or `-` for None."""
    return "-" if part is None else f"{part * 100:.1f}%"


def seconds(value: float | None) -> str:
    """Format a latency with three digits, in milliseconds below one second, or `-` for None."""
    if value is None:
        return "-"
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"


def _signals(row: schema.ReplicaSignals) -> Iterator[tuple[str, ...]]:
    """Yield a line for each signal, and a single line for each page without signals."""
    identity = (row.pool, row.replica)
    for name, signal in row.signals.items():
        staleness = "" if signal.fresh else "stale: ignored"
        yield (*identity, name, f"{signal.value:.6g}", signal.unit, age(signal.age), signal.source, staleness)
    failing: dict[tuple[str, str], list[schema.Source]] = {}
    for item in row.sources:
        if item.reason or item.age is None:
            failing.setdefault((item.kind, item.url), []).append(item)
    for (kind, url), items in failing.items():
        problems = "; ".join(dict.fromkeys(item.message or "not read yet" for item in items))
        newest = min((item.age for item in items if item.age is not None), default=None)
        yield (*identity, "-", "-", "-", age(newest), kind, f"{url}: {problems}")
    if not row.signals and not failing:
        kinds = ", ".join(dict.fromkeys(item.kind for item in row.sources)) or "-"
        yield (*identity, "-", "-", "-", "-", kinds, "no signal yet: rates need requests between two reads")

"""Rows of the dashboard stream. The functions are pure.

Values are rounded to the displayed precision, so that insignificant differences are not treated as changes.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from lbctl.api import schema
from lbctl.signals.merge import Signal


def replica(pool: str, row: schema.Replica, signals: Mapping[str, Signal]) -> schema.LiveReplica:
    """Return a replica's row. `signals` are the replica's fresh signals."""
    return schema.LiveReplica(
        pool=pool,
        name=row.name,
        address=row.address,
        gpu=row.gpu,
        zone=row.zone,
        state=row.state,
        reason=row.state_reason,
        since=row.state_since,
        capacity=row.capacity,
        weight=_rounded(row.weight, 3),
        declared=_share(row.declared),
        share=_rounded(row.share, 4),
        acknowledged=_share(row.acknowledged),
        observed=_share(row.observed),
        requests_per_second=_optional(row.requests_per_second, 1),
        errors=_optional(row.errors, 3),
        first_byte_p50=_optional(row.first_byte_p50, 2),
        first_byte_p99=_optional(row.first_byte_p99, 2),
        in_flight=row.in_flight,
        queue=_signal(signals, "queue", 0),
        kv_cache=_signal(signals, "kv_cache", 2),
        gpu_utilisation=_signal(signals, "gpu", 2),
        temperature=_signal(signals, "temperature", 0),
        cached_expected=row.cached.expected if row.cached else None,
        cached_found=row.cached.found if row.cached else None,
    )


def pool(row: schema.Pool) -> schema.LivePool:
    """Return a pool's row."""
    return schema.LivePool(
        row.name,
        row.model,
        row.algorithm,
        len(row.replicas),
        _optional(row.requests_per_second, 1),
        _optional(row.errors, 3),
        _optional(row.first_byte_p50, 2),
        _optional(row.first_byte_p99, 2),
        _optional(row.picks.share, 3) if row.picks else None,
        row.silent,
        row.cached,
        row.queue,
    )


def proxy(row: schema.Proxy) -> schema.LiveProxy:
    """Return a proxy's row."""
    detail = f"Envoy {row.envoy}".strip() if isinstance(row, schema.XdsProxy) else f"{row.reloads} reloads"
    return schema.LiveProxy(
        node=row.node,
        proxy=row.proxy,
        kind=row.kind,
        connected=row.connected,
        since=row.since,
        state=row.state,
        reason=row.reason or next((item.message for item in row.types if item.message), ""),
        version=row.version,
        last_good=row.last_good,
        detail=detail,
    )


def status(row: schema.Status) -> schema.Status:
    """Return the status without the snapshot age and the number of open picks, because these change constantly."""
    snapshot = replace(row.snapshot, age=0.0) if row.snapshot else None
    return replace(row, snapshot=snapshot, picker=replace(row.picker, open=0) if row.picker else None)


def _signal(signals: Mapping[str, Signal], name: str, digits: int) -> float | None:
    signal = signals.get(name)
    return None if signal is None else _rounded(signal.value, digits)


def _share(value: float | None) -> float | None:
    return _optional(value, 4)


def _optional(value: float | None, digits: int) -> float | None:
    return None if value is None else _rounded(value, digits)


def _rounded(value: float, digits: int) -> float:
    return round(value, digits) if digits else float(round(value))

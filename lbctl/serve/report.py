"""What the control plane says of itself, as values that JSON knows. Pure; times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from lbctl.base.diagnostics import Diagnostic, dotted
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.proxies import Control
from lbctl.ir.snapshot import Snapshot, weights_of
from lbctl.serve.discover import NameState
from lbctl.serve.drains import Since
from lbctl.xds.resource import SHORT, TYPES, Resource, Resources

_NEEDS_RESTART = ("xds_bind", "xds_tls", "api_bind", "api_token_file", "api_tls", "logs_bind", "state")
"""Of `control`: what is taken once, at the start."""

SHORTS = tuple(SHORT.values())


def when(seconds: float | None) -> str | None:
    """ISO 8601 in UTC."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def finding(diagnostic: Diagnostic) -> dict[str, Any]:
    """`text` is the line that the commands print."""
    place = diagnostic.position
    return {
        "code": diagnostic.code,
        "severity": diagnostic.severity,
        "message": diagnostic.message,
        "hint": diagnostic.hint or None,
        "path": dotted(diagnostic.path) or None,
        "file": place.file if place else None,
        "line": place.line or None if place else None,
        "column": place.column or None if place else None,
        "text": str(diagnostic),
    }


def findings(diagnostics: Iterable[Diagnostic]) -> list[dict[str, Any]]:
    return [finding(item) for item in diagnostics]


def restart_needed(running: Control, written: Control) -> list[str]:
    """The keys of `control` that hold another value in the files than the running process was started with."""
    return [
        "control." + name.replace("_", ".", 1)
        for name in _NEEDS_RESTART
        if getattr(running, name) != getattr(written, name)
    ]


def proxy(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the ledger or of a proxy that is driven, with its times as text. `kind` of who only looks: reader."""
    kind = "reader" if row.get("reader") else row.get("kind", "envoy")
    return {
        **{name: value for name, value in row.items() if name != "reader"},
        "kind": kind,
        "since": when(row["since"]),
        "types": [
            {**item, **{name: when(item[name]) for name in ("since", "pushed_at", "acked_at")}} for item in row["types"]
        ],
        "nacks": [{**item, "at": when(item["at"])} for item in row["nacks"]],
    }


def pools(snapshot: Snapshot, since: Since, out: Mapping[str, frozenset[str]]) -> list[dict[str, Any]]:
    """Every pool with its replicas. `snapshot` is of the whole fleet, with the replicas that are `out` still in it."""
    return [_pool(pool, snapshot, since, out.get(pool.name, frozenset())) for pool in snapshot.topology.pools]


def counts(snapshot: Snapshot) -> dict[str, tuple[int, int]]:
    """Pool → how many replicas it has, and how many of these are drained."""
    return {
        pool.name: (len(pool.replicas), sum(_is_drained(pool, item, snapshot) for item in pool.replicas))
        for pool in snapshot.topology.pools
    }


def name(state: NameState) -> dict[str, Any]:
    """A name that is looked up for the fleet."""
    return {
        "name": state.name,
        "resolvers": list(state.resolvers),
        "pools": list(state.pools),
        "addresses": list(state.addresses),
        "refused": list(state.refused),
        "left_out": state.left_out,
        "answered": when(state.answered),
        "error": state.error or None,
        "failed": when(state.failed),
    }


def moved(before: Resources | None, after: Resources) -> set[tuple[str, str]]:
    """(short type, name) of every resource that is new, another, or gone."""
    found = set()
    for kind in TYPES:
        old = before.of(kind) if before else {}
        new = after.of(kind)
        names = {name for name, item in new.items() if name not in old or not _same(old[name], item)}
        found |= {(SHORT[kind], name) for name in names | (old.keys() - new.keys())}
    return found


def _same(one: Resource, other: Resource) -> bool:
    return one is other or one.version == other.version


def _pool(pool: Pool, snapshot: Snapshot, since: Since, out: frozenset[str]) -> dict[str, Any]:
    known = zip(pool.replicas, weights_of(pool, snapshot), strict=True)
    weights = {item.name: weight.rate for item, weight in known}
    out |= snapshot.out.get(pool.name, frozenset())
    in_use = [item for item in pool.replicas if not _is_drained(pool, item, snapshot) and item.name not in out]
    level = min((item.priority for item in in_use), default=0)
    carrying = {item.name: weights[item.name] for item in in_use if item.priority == level}
    total = sum(carrying.values()) or 1.0
    return {
        "name": pool.name,
        "model": pool.model.name if pool.model else None,
        "protocol": pool.protocol,
        "algorithm": pool.balance.algorithm,
        "drain_deadline_seconds": pool.drain_deadline / 1000,
        "replicas": [
            {
                "name": item.name,
                "address": str(item.address),
                "region": item.region,
                "zone": item.zone,
                "gpu": item.gpu,
                "priority": item.priority,
                "capacity": item.capacity,
                "weight": weights[item.name],
                "share": round(carrying.get(item.name, 0.0) / total, 6),
                "drained": when(since.get((pool.name, item.name))),
                "out": item.name in out,
            }
            for item in pool.replicas
        ],
    }


def _is_drained(pool: Pool, replica: Replica, snapshot: Snapshot) -> bool:
    return replica.drain or replica.name in snapshot.drained.get(pool.name, frozenset())

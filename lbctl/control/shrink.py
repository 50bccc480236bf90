"""Checks how many replicas a change removes, and whether that is more than the fleet allows at once (`max_shrink`).

A fleet that loses most of its replicas is more likely to have been truncated by mistake than changed on purpose, and an
intended change can be confirmed. The functions are pure, and apply to both new files and new discovery responses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lbctl.base.diagnostics import Diagnostic, Path
from lbctl.ir.topology import Topology

_HINT = "to confirm the removal, run `lbctl reload --allow-shrink`"


def shrinks(before: Topology, after: Topology, max_percent: float, answered: Collection[str] = ()) -> list[Diagnostic]:
    """Return LB930 for each remaining pool or fleet that loses more than `max_percent` of its replicas.

    All replicas in the topologies count, including drained ones. A discovered pool without replicas has not received a
    response yet and is ignored unless it is in `answered`. The diagnostics contain paths in `after` but no positions.
    """
    before_counts, after_counts = _counts(before), _counts(after)
    unknown = (_unresolved(before) | _unresolved(after)) - set(answered)
    names = sorted(before_counts.keys() & after_counts.keys() - unknown)
    pools = [(name, before_counts[name], after_counts[name]) for name in names]
    diagnostics = [
        _finding(f"the pool {name}", ("pools", name), count, after_count, max_percent)
        for name, count, after_count in pools
        if _too_many(count, after_count, max_percent)
    ]
    count, after_count = _total(before_counts, unknown), _total(after_counts, unknown)
    if _too_many(count, after_count, max_percent):
        diagnostics.append(_finding("the whole fleet", ("pools",), count, after_count, max_percent))
    return diagnostics


def _counts(topology: Topology) -> dict[str, int]:
    return {pool.name: len(pool.replicas) for pool in topology.pools}


def _unresolved(topology: Topology) -> set[str]:
    discovered = (pool for pool in topology.pools if pool.discovery is not None and not pool.discovery.compiled)
    return {pool.name for pool in discovered if not pool.replicas}


def _total(counts: Mapping[str, int], unknown: set[str]) -> int:
    return sum(count for name, count in counts.items() if name not in unknown)


def _too_many(before: int, after: int, max_percent: float) -> bool:
    return (before - after) * 100 > max_percent * before


def _finding(subject: str, path: Path, before: int, after: int, max_percent: float) -> Diagnostic:
    lost = (before - after) / before * 100
    change = f"{subject} would go from {before} to {after} replicas (-{lost:.3g}%)"
    message = f"{change}, which is more than max_shrink ({max_percent:g}%)"
    return Diagnostic("LB930", message, None, path, _HINT)

"""How many replicas a change takes away, and whether that is more than the fleet allows at once (`max_shrink`).

A fleet that loses most of its replicas was more often truncated than meant; what was meant can be confirmed. This is
pure: it is asked about new files and about new answers of discovery alike.
"""

from __future__ import annotations

from collections.abc import Mapping

from lbctl.base.diagnostics import Diagnostic, Path
from lbctl.ir.pools import DnsDiscovery
from lbctl.ir.topology import Topology

_HINT = "`lbctl reload --allow-shrink` confirms it"


def shrinks(before: Topology, after: Topology, most: float) -> list[Diagnostic]:
    """LB930 for each pool that stays and loses more than `most` percent of its replicas, and for the whole fleet.

    Replicas are counted as the topologies hold them, drained ones too. A pool that asks the DNS and holds none is not
    resolved yet: it is judged when it is, and left out here. The findings have paths of `after` and no positions.
    """
    then, now = _counts(before), _counts(after)
    unknown = _unresolved(before) | _unresolved(after)
    pools = [(name, then[name], now[name]) for name in sorted(then.keys() & now.keys() - unknown)]
    found = [
        _finding(f"the pool {name}", ("pools", name), count, left, most)
        for name, count, left in pools
        if _too_many(count, left, most)
    ]
    count, left = _total(then, unknown), _total(now, unknown)
    if _too_many(count, left, most):
        found.append(_finding("the whole fleet", ("pools",), count, left, most))
    return found


def _counts(topology: Topology) -> dict[str, int]:
    return {pool.name: len(pool.replicas) for pool in topology.pools}


def _unresolved(topology: Topology) -> set[str]:
    return {pool.name for pool in topology.pools if isinstance(pool.discovery, DnsDiscovery) and not pool.replicas}


def _total(counts: Mapping[str, int], unknown: set[str]) -> int:
    return sum(count for name, count in counts.items() if name not in unknown)


def _too_many(before: int, after: int, most: float) -> bool:
    return (before - after) * 100 > most * before


def _finding(what: str, path: Path, before: int, after: int, most: float) -> Diagnostic:
    lost = (before - after) / before * 100
    message = (
        f"{what} would go from {before} to {after} replicas (-{lost:.3g}%), which is more than max_shrink ({most:g}%)"
    )
    return Diagnostic("LB930", message, None, path, _HINT)

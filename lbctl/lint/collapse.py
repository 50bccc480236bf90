"""Collapses the findings of one fault in many replicas of a pool into the first one, with the number of the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lbctl.base.diagnostics import Diagnostic, Path


def collapse(findings: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Collapse findings about replicas by code and pool; keep all others, in the same order."""
    groups: dict[object, list[Diagnostic]] = {}
    for finding in dict.fromkeys(findings):
        groups.setdefault((finding.code, finding.path[:2]) if _is_of_replica(finding.path) else finding, []).append(
            finding
        )
    return [_with_count(group) for group in groups.values()]


def _is_of_replica(path: Path) -> bool:
    return len(path) > 3 and path[0] == "pools" and path[2] == "replicas"


def _with_count(group: list[Diagnostic]) -> Diagnostic:
    more = f" (and {len(group) - 1} more like it in this pool)" if len(group) > 1 else ""
    return replace(group[0], message=f"{group[0].message}{more}")

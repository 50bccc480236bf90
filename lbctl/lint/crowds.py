"""Ten thousand replicas with one fault are one finding: the first that was found, with the number of the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lbctl.base.diagnostics import Diagnostic, Path


def crowds(findings: Iterable[Diagnostic]) -> list[Diagnostic]:
    """What is found of replicas once for each code and pool, everything else as it is; in the same order."""
    groups: dict[object, list[Diagnostic]] = {}
    for item in dict.fromkeys(findings):
        groups.setdefault((item.code, item.path[:2]) if _of_replica(item.path) else item, []).append(item)
    return [_first(group) for group in groups.values()]


def _of_replica(path: Path) -> bool:
    return len(path) > 3 and path[0] == "pools" and path[2] == "replicas"


def _first(group: list[Diagnostic]) -> Diagnostic:
    more = f" (and {len(group) - 1} more like it in this pool)" if len(group) > 1 else ""
    return replace(group[0], message=f"{group[0].message}{more}")

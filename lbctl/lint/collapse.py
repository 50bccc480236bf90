"""Collapses repeated findings into one finding that states how many others there are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from lbctl.base.diagnostics import Diagnostic, Path, dotted

_MAX_PLACES = 3
"""Maximum number of other places that a finding names."""
_WORD = re.compile(r"[^\s,:;()]+")


def collapse(findings: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Collapse findings about replicas of the same pool that have the same code.

    Keep all other findings and their order.
    """
    groups: dict[object, list[Diagnostic]] = {}
    for finding in dict.fromkeys(findings):
        groups.setdefault((finding.code, finding.path[:2]) if _is_of_replica(finding.path) else finding, []).append(
            finding
        )
    return [_with_count(group) for group in groups.values()]


def collapse_equal(findings: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Collapse equal warnings from several places. Keep all other findings and their order."""
    groups: dict[object, list[Diagnostic]] = {}
    for finding in findings:
        key = finding if finding.severity == "error" else (finding.code, finding.message, finding.hint)
        groups.setdefault(key, []).append(finding)
    return [_with_other_places(group) for group in groups.values()]


def _with_other_places(group: Sequence[Diagnostic]) -> Diagnostic:
    """Return the first of several equal findings, with the other places listed in its message."""
    first = group[0]
    places = list(dict.fromkeys(_place(item, first) for item in group[1:]))
    if not places:
        return first
    more = f" and {len(places) - _MAX_PLACES} more" if len(places) > _MAX_PLACES else ""
    return replace(first, message=f"{first.message} (also at {', '.join(places[:_MAX_PLACES])}{more})")


def _place(item: Diagnostic, first: Diagnostic) -> str:
    """Return the position of `item`, or its path if the position is unknown or equals the position of `first`."""
    if item.position is None or first.position is None or item.position == first.position:
        return dotted(item.path)
    is_same_file = item.position.file == first.position.file
    return f"{item.position.line}:{item.position.column}" if is_same_file else str(item.position)


def template(finding: Diagnostic) -> str:
    """Return the message without numbers and without the names in its path.

    Findings with different templates have different consequences.
    """
    names = set(map(str, finding.path))
    words = (word.strip("'`\"") for word in _WORD.findall(finding.message))
    return " ".join("…" if word in names or any(map(str.isdigit, word)) else word for word in words)


def with_places(group: Sequence[Diagnostic]) -> Diagnostic:
    """Return the first of several findings, with the number of the others added to its message."""
    others = len(group) - 1
    more = f" (and in {others} more place{'s' if others > 1 else ''})" if others else ""
    return replace(group[0], message=f"{group[0].message}{more}")


def _is_of_replica(path: Path) -> bool:
    return len(path) > 3 and path[0] == "pools" and path[2] == "replicas"


def _with_count(group: list[Diagnostic]) -> Diagnostic:
    more = f" (and {len(group) - 1} more like it in this pool)" if len(group) > 1 else ""
    return replace(group[0], message=f"{group[0].message}{more}")

"""Checks a single value in a fleet against the model, before the rest of the fleet is known.

The importers convert the meaning of a directive. Only the model determines whether a value is valid for its key, so the
two never disagree.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from lbctl.base.diagnostics import Diagnostic, Path
from lbctl.model.errors import diagnostics_of
from lbctl.model.fleet import Fleet
from lbctl.model.node import Node, descend
from lbctl.model.section import Section
from lbctl.model.shape import is_named_map, section_below

_MISSING = "LB014"
_OBJECT = 2
"""Number of elements in an object's path, such as `("pools", "chat")`."""


def refusals(path: Path, value: Any, *, whole: bool = False) -> list[Diagnostic]:
    """Return the faults in a value at `path`, with their paths in the fleet but without positions.

    Missing keys of an object such as `("pools", "chat")` are faults only if it is `whole`. Missing keys of a value
    inside such an object are always faults.
    """
    section, start = _enclosing(path)
    steps = path[start:]
    candidate = _nested(steps, value)
    try:
        section.model_validate(candidate)
    except ValidationError as error:
        root, size = _node(candidate), len(steps)
        faults = [item for item in diagnostics_of(error, root, section) if len(item.path) >= size]
        found = {(*path, *item.path[size:]): item for item in faults if item.path[0] == steps[0]}
        lacking = {place for place, item in found.items() if _is_lacking(root, place, item)}
        return [_at(place, item) for place, item in found.items() if whole or place not in lacking]
    return []


def _is_lacking(root: Node, place: Path, fault: Diagnostic) -> bool:
    """Return whether a fault is a missing key in an object."""
    missing = len(place) == _OBJECT or (len(place) == _OBJECT + 1 and descend(root, fault.path) is None)
    return missing and fault.code == _MISSING


def _at(path: Path, fault: Diagnostic) -> Diagnostic:
    return Diagnostic(fault.code, fault.message, None, path, fault.hint)


def _enclosing(path: Path) -> tuple[type[Section], int]:
    """Return the innermost section that contains a key in the path, and the index of that key in the path."""
    section: type[Section] = Fleet
    index = 0
    while True:
        key = str(path[index])
        below = section_below(section, key)
        has_name = is_named_map(section, key) or isinstance(next(iter(path[index + 1 :]), ""), int)
        following = index + 1 + has_name
        if below is None or following >= len(path):
            return section, index
        section, index = below, following


def _nested(steps: Path, value: Any) -> Any:
    """Return the value wrapped in its enclosing maps and lists. In a list, the value is the only item."""
    for step in reversed(steps):
        value = [value] if isinstance(step, int) else {step: value}
    return value


def _node(value: Any) -> Node:
    if isinstance(value, dict):
        return Node({key: _node(child) for key, child in value.items()}, "", 0, 0)
    if isinstance(value, list):
        return Node(list(map(_node, value)), "", 0, 0)
    return Node(value, "", 0, 0)

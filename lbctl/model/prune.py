"""Removes faulty values from a fleet, so that the rest can be checked for other faults.

A single run reports every error, so a mistyped key must not hide a reference to a missing pool. The result is not used
for anything else. Objects that have lost values are listed, so that their missing values are not reported.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from lbctl.base.diagnostics import Path
from lbctl.model.node import Node, descend


def without_faults(root: Node, error: ValidationError) -> tuple[Node, frozenset[Path]]:
    """Return the tree without faulty values, and the objects (`("pools", "a")`) that have lost values."""
    paths = sorted(set(_faults(root, error)) - {()}, key=_deepest_first)
    for path in paths:
        root = _without(root, path)
    return root, frozenset(path[:2] for path in paths)


def _faults(root: Node, error: ValidationError) -> Iterator[Path]:
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        path: Path = detail["loc"][:-1] if detail["loc"][-1:] == ("[key]",) else detail["loc"]
        while path and descend(root, path) is None:
            path = path[:-1]
        yield path


def _deepest_first(path: Path) -> tuple[int, list[tuple[int, int, str]]]:
    """Sort later list entries before earlier ones, so that a removal does not shift the index of a later removal."""
    return -len(path), [(0, -step, "") if isinstance(step, int) else (1, 0, step) for step in path]


def original_path(original: Node, pruned: Node, path: Path) -> Path:
    """Return the path in `original` of the value at `path` in `pruned`; list indexes may differ."""
    result: list[str | int] = []
    for step in path:
        child = descend(pruned, (step,))
        if isinstance(step, int) and child is not None and isinstance(original.value, list):
            positions = [item.position for item in original.value]
            step = positions.index(child.position) if child.position in positions else step
        result.append(step)
        original_child = descend(original, (step,))
        if child is None or original_child is None:
            return (*result, *path[len(result) :])
        original, pruned = original_child, child
    return tuple(result)


def _without(node: Node, path: Path) -> Node:
    step, rest = path[0], path[1:]
    value: dict[str, Node] | list[Node]
    if isinstance(node.value, dict) and isinstance(step, str):
        value = dict(node.value)
        child = value.pop(step, None)
        if rest and child is not None:
            value[step] = _without(child, rest)
    elif isinstance(node.value, list) and isinstance(step, int) and step < len(node.value):
        value = list(node.value)
        child = value.pop(step)
        if rest:
            value.insert(step, _without(child, rest))
    else:
        return node
    return Node(value, node.file, node.line, node.column, node.key_line, node.key_column)

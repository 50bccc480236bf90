"""What is left of a fleet when its faulty values are taken out: enough to go on looking for other faults.

One run shows every error, so a mistyped key must not hide a pool that is not there. The rest is used for nothing but
that, and what was taken out is named, so that nobody complains of its absence.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from lbctl.base.diagnostics import Path
from lbctl.model.node import Node, descend


def without_faults(root: Node, error: ValidationError) -> tuple[Node, frozenset[Path]]:
    """The tree less every faulty value, and the objects (`("pools", "a")`) that something was taken from."""
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
    """Later places of a list before earlier ones, so that a place that was taken out moves none that is still to go."""
    return -len(path), [(0, -step, "") if isinstance(step, int) else (1, 0, step) for step in path]


def whole_path(whole: Node, left: Node, path: Path) -> Path:
    """The path in `whole` of what stands at `path` in `left`, where places of lists have moved."""
    found: list[str | int] = []
    for step in path:
        below = descend(left, (step,))
        if isinstance(step, int) and below is not None and isinstance(whole.value, list):
            places = [item.position for item in whole.value]
            step = places.index(below.position) if below.position in places else step
        found.append(step)
        above = descend(whole, (step,))
        if below is None or above is None:
            return (*found, *path[len(found) :])
        whole, left = above, below
    return tuple(found)


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

"""A YAML value with its position.

A diagnostic about a value can always show its line and column, because the value keeps them. A `Node` is a plain record
without validation, because a fleet may contain tens of thousands of them.
"""

from __future__ import annotations

from typing import Any

from lbctl.base.diagnostics import Path, Position

Scalar = str | int | float | bool | None


class Node:
    """A map, a list or a scalar with its position.

    Lines and columns are counted from 1; `key_line` is 0 if the key is missing.

    `text` is the YAML of an object in a section, such as a pool; it is empty for every other value.
    """

    __slots__ = ("column", "file", "key_column", "key_line", "line", "text", "value")

    def __init__(
        self,
        value: dict[str, Node] | list[Node] | Scalar,
        file: str,
        line: int,
        column: int,
        key_line: int = 0,
        key_column: int = 0,
        text: str = "",
    ) -> None:
        self.value = value
        self.file = file
        self.line = line
        self.column = column
        self.key_line = key_line
        self.key_column = key_column
        self.text = text

    def __repr__(self) -> str:
        return f"<{type(self.value).__name__} at {self.position}>"

    @property
    def position(self) -> Position:
        """Position of the value."""
        return Position(self.file, self.line, self.column)

    @property
    def key_position(self) -> Position:
        """Position of the value's key, or of the value itself if it has no key."""
        return Position(self.file, self.key_line, self.key_column) if self.key_line else self.position


def plain_value(node: Node) -> Any:
    """Convert a tree to dicts, lists and scalars, without positions."""
    value = node.value
    if isinstance(value, dict):
        return {key: plain_value(child) for key, child in value.items()}
    if isinstance(value, list):
        return [plain_value(child) for child in value]
    return value


def descend(node: Node, path: Path) -> Node | None:
    """Return the node at `path`, or None."""
    current: Node | None = node
    for step in path:
        value = current.value if current is not None else None
        if isinstance(value, dict) and isinstance(step, str):
            current = value.get(step)
        elif isinstance(value, list) and isinstance(step, int):
            current = value[step] if 0 <= step < len(value) else None
        else:
            return None
    return current


def position_of(node: Node, path: Path, key: bool = False) -> Position:
    """Return the position of the value at `path`, or of its nearest existing ancestor.

    With `key`, return the position of the key.
    """
    for step in path:
        value = node.value
        child: Node | None = None
        if isinstance(value, dict) and isinstance(step, str):
            child = value.get(step)
        elif isinstance(value, list) and isinstance(step, int):
            child = value[step] if 0 <= step < len(value) else None
        if child is None:
            break
        node = child
    return node.key_position if key else node.position

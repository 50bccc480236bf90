"""A YAML value that knows where it stands.

Everything that is later found wrong with a value can be shown at its line and column, because the value was never
parted from them. A `Node` is a plain record, made by the ten thousand; it judges nothing.
"""

from __future__ import annotations

from typing import Any

from lbctl.base.diagnostics import Path, Position

Scalar = str | int | float | bool | None


class Node:
    """A map, a list or a scalar and its place. Lines and columns count from 1; `key_line` is 0 without a key."""

    __slots__ = ("column", "file", "key_column", "key_line", "line", "value")

    def __init__(
        self,
        value: dict[str, Node] | list[Node] | Scalar,
        file: str,
        line: int,
        column: int,
        key_line: int = 0,
        key_column: int = 0,
    ) -> None:
        self.value = value
        self.file = file
        self.line = line
        self.column = column
        self.key_line = key_line
        self.key_column = key_column

    def __repr__(self) -> str:
        return f"<{type(self.value).__name__} at {self.position}>"

    @property
    def position(self) -> Position:
        """Of the value."""
        return Position(self.file, self.line, self.column)

    @property
    def key_position(self) -> Position:
        """Of the key whose value this is; of the value itself if it has no key."""
        return Position(self.file, self.key_line, self.key_column) if self.key_line else self.position


def plain(node: Node) -> Any:
    """The value without its places: dicts, lists and scalars."""
    value = node.value
    if isinstance(value, dict):
        return {key: plain(child) for key, child in value.items()}
    if isinstance(value, list):
        return [plain(child) for child in value]
    return value


def descend(node: Node, path: Path) -> Node | None:
    """The node at `path`, or None."""
    here: Node | None = node
    for step in path:
        value = here.value if here is not None else None
        if isinstance(value, dict) and isinstance(step, str):
            here = value.get(step)
        elif isinstance(value, list) and isinstance(step, int):
            here = value[step] if 0 <= step < len(value) else None
        else:
            return None
    return here


def find(node: Node, path: Path, key: bool = False) -> Position:
    """The place of the value at `path`, or of its nearest ancestor that exists; with `key`, the place of its key."""
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

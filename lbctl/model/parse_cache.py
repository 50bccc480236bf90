"""Keeps the parts of the last fleet, so that files, pools and routes that stay are not parsed and validated again.

A file that stays is not parsed, and its nodes are the same objects. A pool or route whose values stay is not validated,
be it on other lines than before: in a fleet of a thousand pools the validation of a change costs what one pool costs.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from lbctl.base.diagnostics import Path
from lbctl.model.load import ParsedFiles
from lbctl.model.node import Node, plain_value
from lbctl.model.section import Section
from lbctl.model.shape import section_below

_Empty = tuple[tuple[Path, Node], ...]
"""(path below an object, node without a value)"""


class _Merged(NamedTuple):
    """An object over its defaults. The inputs are kept, so that no other object gets their identity."""

    base: Node
    own: Node
    result: Node


class _Validated(NamedTuple):
    """An object that is valid, and what it was made of."""

    node: Node
    content: bytes
    section: Section


class ParseCache:
    """The parts of the last fleet.

    One `parse` calls `begin`, `merge`, `plain_value`, `remember` and `empty`, in this order (of a faulty fleet no
    `remember`).
    """

    def __init__(self) -> None:
        self.files = ParsedFiles()
        self._merged: dict[tuple[int, int], _Merged] = {}
        self._merged_before: dict[tuple[int, int], _Merged] = {}
        self._validated: dict[tuple[str, str], _Validated] = {}
        self._contents: dict[tuple[str, str], bytes] = {}
        self._empty: dict[tuple[str, str], tuple[Node, bytes, _Empty]] = {}

    def begin(self) -> None:
        """Begin a new fleet: what it does not merge again is forgotten with the next one."""
        self._merged, self._merged_before = {}, self._merged

    def merge(self, section: type[Section], base: Node, own: Node) -> Node:
        """Return `own` over `base`, as `merge` does: the same node where both are those of the last fleet."""
        key = id(base), id(own)
        merged = self._merged_before.get(key) or _Merged(base, own, merge(section, base, own))
        self._merged[key] = merged
        return merged.result

    def plain_value(self, root: Node) -> dict[str, Any]:
        """Return the fleet without positions; pools and routes that stay are the objects of `remember`."""
        self._contents = {}
        return {
            name: {key: self._plain((name, key), item) for key, item in _entries(node).items()}
            if name in ("pools", "routes") and isinstance(node.value, dict)
            else plain_value(node)
            for name, node in _entries(root).items()
        }

    def remember(self, root: Node, sections: Mapping[str, Mapping[str, Section]]) -> None:
        """Keep the validated objects of this fleet, by section and name, and forget all others."""
        nodes = _entries(root)
        self._validated = {
            (section, name): _Validated(node, self._contents[section, name], objects[name])
            for section, objects in sections.items()
            if section in nodes
            for name, node in _entries(nodes[section]).items()
        }

    def empty(self, root: Node) -> Iterator[tuple[Path, Node]]:
        """Yield each node without a value, and its path; those of pools and routes that stay are kept."""
        before, self._empty = self._empty, {}
        for name, section in _entries(root).items():
            if name not in ("pools", "routes") or not isinstance(section.value, dict):
                yield from _empty(section, (name,))
                continue
            for key, node in section.value.items():
                content = self._contents[name, key]
                kept, kept_content, below = before.get((name, key), (node, b"", ()))
                if kept_content != content or (below and kept is not node):
                    below = tuple(_empty(node))
                self._empty[name, key] = node, content, below
                yield from (((name, key, *path), item) for path, item in below)

    def _plain(self, place: tuple[str, str], node: Node) -> Any:
        before = self._validated.get(place)
        if before is not None and before.node is node:
            self._contents[place] = before.content
            return before.section
        value = plain_value(node)
        content = self._contents[place] = marshal.dumps(value, 2)  # version 2: the same bytes for the same values
        return before.section if before is not None and before.content == content else value


def merge(section: type[Section], base: Node, own: Node) -> Node:
    """Merge `own` over `base`: maps deeply, lists and scalars as a whole; `own`'s choice replaces that of `base`."""
    if not isinstance(base.value, dict) or not isinstance(own.value, dict):
        return own
    dropped = {
        key for choice in section.CHOICES if any(name in own.value for name in choice.keys) for key in choice.keys
    }  # fmt: skip
    merged = {key: node for key, node in base.value.items() if key not in dropped and key not in own.value}
    for key, node in own.value.items():
        inherited = base.value.get(key)
        merged[key] = node if inherited is None else merge(section_below(section, key) or Section, inherited, node)
    return Node(merged, own.file, own.line, own.column, own.key_line, own.key_column)


def _empty(node: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    if node.value is None:
        yield path, node
    elif isinstance(node.value, dict):
        for key, child in node.value.items():
            yield from _empty(child, (*path, key))
    elif isinstance(node.value, list):
        for index, child in enumerate(node.value):
            yield from _empty(child, (*path, index))


def _entries(node: Node) -> dict[str, Node]:
    """The entries of a map; none of anything else."""
    return node.value if isinstance(node.value, dict) else {}

"""Parses a changed file by parsing only the entries of a section that have changed.

Of a file with a thousand pools, parsing one of them takes a hundredth of the time. The result is that of `yaml.read`:
only whole lines between two keys of a section in block style are parsed alone, where the parser is in the same state
before and after. Whatever does not fit that, and each text with a fault, is left to `yaml.read`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lbctl.base.diagnostics import Diagnostics
from lbctl.model.node import Node
from lbctl.model.text import MAX_BYTES
from lbctl.model.yaml import MAX_NODES, read_counted

_SECTION = b"section"
"""Stands for the name of the section above its entries."""


class Parsed(NamedTuple):
    """A text without faults, as it was parsed."""

    data: bytes
    """The text, as the file has it."""
    root: Node
    """Its map."""
    nodes: int
    """At least the number of its keys and values."""


class _Change(NamedTuple):
    """The lines `first` to `end` of a text were replaced by those from `first` to `new_end` of another."""

    first: int
    end: int
    new_end: int


class _Window(NamedTuple):
    """Entries of a section, and the lines from their first key to the next key after them."""

    section: str
    names: Sequence[str]
    first: int
    end: int


def reparse(before: Parsed, data: bytes) -> Parsed | None:
    """Parse `data`, a later text of the same file; None where all of it has to be parsed."""
    if b"\r" in before.data or b"\r" in data or b"-----BEGIN" in data or len(data) > MAX_BYTES:
        return None
    lines = data.split(b"\n")
    change = _change(before.data.split(b"\n"), lines)
    window = _window(before.root, change)
    if window is None:
        return None
    moved = change.new_end - change.end
    block = [*lines[window.first : window.end + moved], b""] if window.end else lines[window.first :]
    if any(line and line[:1] not in b" #" for line in block):
        return None
    entries, count = _entries(block, window, before.root)
    if not entries or before.nodes + count > MAX_NODES:
        return None
    root = _replaced(before.root, window, entries, moved)
    return None if root is None else Parsed(data, root, before.nodes + count)


def _change(before: Sequence[bytes], after: Sequence[bytes]) -> _Change:
    shorter = min(len(before), len(after))
    first = next((index for index in range(shorter) if before[index] != after[index]), shorter)
    backwards = zip(reversed(before[first:]), reversed(after[first:]), strict=False)
    same = next((index for index, (old, new) in enumerate(backwards) if old != new), shorter - first)
    return _Change(first, len(before) - same, len(after) - same)


def _window(root: Node, change: _Change) -> _Window | None:
    """Return the entries that hold all changed lines, their own first line excepted; `end` is 0 at the end of file."""
    sections = _block(root)
    if sections is None or root.column != 1:
        return None
    below = (*(node.key_line - 1 for node in sections.values()), 0)[1:]
    for (name, node), end in zip(sections.items(), below, strict=True):
        entries = _block(node)
        if entries is None or node.line - 1 > change.first or (end and end < change.end):
            continue
        starts = [*(entry.key_line - 1 for entry in entries.values()), end]
        begin = max((index for index, start in enumerate(starts[:-1]) if start < change.first), default=0)
        after = (index for index, start in enumerate(starts) if index > begin and start >= change.end)
        last = next(after, len(entries))
        return _Window(name, list(entries)[begin:last], starts[begin], starts[last])
    return None


def _block(node: Node) -> dict[str, Node] | None:
    """Return the entries of a map in block style, which begins where its first key does; None for any other node."""
    if not isinstance(node.value, dict) or not node.value:
        return None
    first = next(iter(node.value.values()))
    is_block = (node.line, node.column) == (first.key_line, first.key_column)
    return node.value if is_block and all(item.key_column == node.column for item in node.value.values()) else None


def _entries(block: Sequence[bytes], window: _Window, root: Node) -> tuple[dict[str, Node], int]:
    """Return the entries that the lines hold, on the lines where they stand; none if there is anything else."""
    faults = Diagnostics()
    above = b"\n" * (window.first - 1) + _SECTION + b":\n"
    tree, count = read_counted(above + b"\n".join(block), root.file, faults)
    assert isinstance(root.value, dict)
    if tree is None or faults or not isinstance(tree.value, dict):
        return {}, 0
    section = tree.value[_SECTION.decode()]
    entries = _block(section) if section.column == root.value[window.section].column else None
    return entries or {}, count


def _replaced(root: Node, window: _Window, entries: dict[str, Node], moved: int) -> Node | None:
    """Return the tree with these entries in the window, and what stands below it moved; None if a name is repeated."""
    assert isinstance(root.value, dict)
    section = root.value[window.section]
    assert isinstance(section.value, dict)
    changed: dict[str, Node] = {}
    for name, node in section.value.items():
        if name == window.names[0]:
            changed |= entries
        if name not in window.names:
            if name in entries:
                return None
            changed[name] = _moved(node, moved) if node.key_line > window.first else node
    first = next(iter(changed.values()))
    whole = Node(changed, root.file, first.key_line, first.key_column, section.key_line, section.key_column)
    return Node(dict(_sections(root.value, section, whole, moved)), root.file, root.line, root.column)


def _sections(sections: dict[str, Node], section: Node, changed: Node, moved: int) -> Iterator[tuple[str, Node]]:
    for name, node in sections.items():
        if node is section:
            yield name, changed
        else:
            yield name, _moved(node, moved) if node.key_line > section.key_line else node


def _moved(node: Node, by: int) -> Node:
    """Return the node so many lines below; the node itself where it does not move."""
    if not by:
        return node
    value = node.value
    if isinstance(value, dict):
        value = {key: _moved(child, by) for key, child in value.items()}
    elif isinstance(value, list):
        value = [_moved(child, by) for child in value]
    key_line = node.key_line and node.key_line + by
    return Node(value, node.file, node.line + by, node.column, key_line, node.key_column)

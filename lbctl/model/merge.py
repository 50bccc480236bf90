"""Merges the values of `defaults` and of an object."""

from __future__ import annotations

from lbctl.model.node import Node
from lbctl.model.section import Section
from lbctl.model.shape import section_below


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

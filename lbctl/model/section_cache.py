"""Caches the last fleet's validated and compiled pools and routes by their content.

In a fleet of a thousand pools, a reload then validates and compiles only those whose YAML has changed. An object's
content is its text in the file plus the defaults: equal texts in the same column have equal values.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from lbctl.model.node import Node, plain_value
from lbctl.model.section import Section

SECTIONS = ("pools", "routes")
"""The sections whose objects are cached."""
Place = tuple[str, str]
"""(section, name of the object in it)."""
_Content = tuple[str, int, bytes]
"""The text of an object, its column, and the defaults of the fleet."""
_Result = TypeVar("_Result")


class _Derived(NamedTuple):
    inputs: tuple[object, ...]
    result: Any


@dataclass(slots=True)
class _Entry:
    """A valid object of the fleet."""

    content: _Content
    section: Section
    derived: dict[Hashable, _Derived] = field(default_factory=dict)


class SectionCache:
    """The last valid fleet's pools and routes."""

    def __init__(self) -> None:
        self._entries: dict[Place, _Entry] = {}

    def with_known(self, fleet: Node) -> dict[str, Any]:
        """Return a fleet's plain values, with validated sections for pools and routes that have not changed."""
        defaults = _defaults(fleet)
        return {
            section: {name: self._known((section, name), item, defaults) for name, item in node.value.items()}
            if section in SECTIONS and isinstance(node.value, dict)
            else plain_value(node)
            for section, node in _fields(fleet).items()
        }

    def _known(self, place: Place, node: Node, defaults: bytes) -> object:
        entry = self._entries.get(place)
        return plain_value(node) if entry is None or entry.content != _content(node, defaults) else entry.section

    def keep(self, fleet: Node, sections: Mapping[str, Mapping[str, Section]]) -> None:
        """Keep a valid fleet's pools and routes, and forget all others."""
        before, defaults, nodes = self._entries, _defaults(fleet), _fields(fleet)
        self._entries = {}
        for section in SECTIONS:
            for name, validated in sections[section].items():
                entry = before.get((section, name))
                if entry is None or entry.section is not validated:
                    entry = _Entry(_content(_fields(nodes[section])[name], defaults), validated)
                self._entries[section, name] = entry

    def derived(
        self,
        purpose: Hashable,
        place: Place,
        section: Section,
        inputs: tuple[object, ...],
        derive: Callable[[], tuple[_Result, bool]],
    ) -> _Result:
        """Return the value derived from a section for `purpose`, using the cache if the inputs are the same.

        `derive` computes the value and returns whether it may be cached. Nothing is cached for a section that was
        changed after its validation.
        """
        entry = self._entries.get(place)
        if entry is None or entry.section is not section:
            return derive()[0]
        known = entry.derived.get(purpose)
        if known is not None and known.inputs == inputs:
            return known.result  # type: ignore[no-any-return]
        result, may_be_kept = derive()
        if may_be_kept:
            entry.derived[purpose] = _Derived(inputs, result)
        else:
            entry.derived.pop(purpose, None)
        return result


def _content(node: Node, defaults: bytes) -> _Content:
    return node.text, node.column, defaults


def _defaults(fleet: Node) -> bytes:
    """Serialize the defaults so that equal values of equal types give equal bytes; 1, 1.0 and True differ."""
    defaults = _fields(fleet).get("defaults")
    return b"" if defaults is None else marshal.dumps(plain_value(defaults), 2)  # later versions depend on references


def _fields(node: Node) -> dict[str, Node]:
    return node.value if isinstance(node.value, dict) else {}

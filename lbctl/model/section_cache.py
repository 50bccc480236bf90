"""Cache of the validated and compiled pools and routes of the last fleet, by their content.

In a fleet of a thousand pools, a reload then validates and compiles only those whose values have changed.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from lbctl.model.section import Section

_SECTIONS = ("pools", "routes")
_Place = tuple[str, str]
"""(section, name of the object in it)."""
_Result = TypeVar("_Result")


class _Compiled(NamedTuple):
    inputs: tuple[object, ...]
    result: Any


@dataclass(slots=True)
class _Entry:
    """A valid object of the fleet."""

    content: bytes
    section: Section
    compiled: _Compiled | None = None


class SectionCache:
    """The pools and routes of the last valid fleet."""

    def __init__(self) -> None:
        self._entries: dict[_Place, _Entry] = {}

    def with_known(self, fleet: Mapping[str, Any]) -> dict[str, Any]:
        """Return the plain values of a fleet with the validated sections of pools and routes that have not changed."""
        known = dict(fleet)
        for section in _SECTIONS:
            if isinstance(objects := fleet.get(section), dict):
                known[section] = {name: self._known((section, name), value) for name, value in objects.items()}
        return known

    def _known(self, place: _Place, value: object) -> object:
        entry = self._entries.get(place)
        return value if entry is None or entry.content != _content(value) else entry.section

    def keep(self, fleet: Mapping[str, Any], sections: Mapping[str, Mapping[str, Section]]) -> None:
        """Keep the pools and routes of a valid fleet, and forget all others. `fleet` contains the plain values."""
        before = self._entries
        self._entries = {}
        for section in _SECTIONS:
            for name, validated in sections[section].items():
                entry = before.get((section, name))
                if entry is None or entry.section is not validated:
                    entry = _Entry(_content(fleet[section][name]), validated)
                self._entries[section, name] = entry

    def compiled(
        self, place: _Place, section: Section, inputs: tuple[object, ...], resolve: Callable[[], tuple[_Result, bool]]
    ) -> _Result:
        """Return the compiled section, from the cache if it was compiled with the same inputs before.

        `resolve` compiles it, and returns whether the result may be kept. A section that was changed after its
        validation is never kept.
        """
        entry = self._entries.get(place)
        if entry is None or entry.section is not section:
            return resolve()[0]
        if entry.compiled is None or entry.compiled.inputs != inputs:
            result, may_be_kept = resolve()
            entry.compiled = _Compiled(inputs, result) if may_be_kept else None
            return result
        return entry.compiled.result  # type: ignore[no-any-return]


def _content(value: Any) -> bytes:
    """Return the same bytes for the same values of the same types; 1, 1.0 and True differ."""
    return marshal.dumps(value, 2)  # later versions of the format depend on references between objects

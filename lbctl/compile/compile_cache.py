"""Keeps the pools and routes of the last fleet as they were compiled, so that what stays is not compiled again.

`model.parse_cache` keeps the section of an object that stays, so the identity of the section says whether it does. What
a pass reads besides the section is given as `inputs`. An object with a finding is compiled each time, since its
position may move while its values stay; so is every object of a fleet from which faulty values were removed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from lbctl.base.diagnostics import Diagnostics
from lbctl.compile.context import Context
from lbctl.model.section import Section

_Resolved = TypeVar("_Resolved")


class _Compiled(NamedTuple):
    """An object without findings, and what it was compiled from."""

    section: Section
    inputs: tuple[object, ...]
    result: Any


class CompileCache:
    """The objects of the last fleet that were compiled without findings."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, str], _Compiled] = {}
        self._before: dict[tuple[str, str], _Compiled] = {}

    def begin(self) -> None:
        """Begin a new fleet: what it does not have is forgotten."""
        self._objects, self._before = {}, self._objects

    def compiled(
        self,
        ctx: Context,
        place: tuple[str, str],
        section: Section,
        inputs: tuple[object, ...],
        resolve: Callable[[Context], _Resolved],
    ) -> _Resolved:
        """Return what `resolve` returns for the object at `place`, or has returned for the last fleet."""
        kept = self._before.get(place)
        if kept is None or kept.section is not section or kept.inputs != inputs or ctx.source.pruned:
            findings = Diagnostics()
            kept = _Compiled(section, inputs, resolve(replace(ctx, diagnostics=findings)))
            ctx.diagnostics.extend(findings)
            if findings:
                return kept.result  # type: ignore[no-any-return]
        self._objects[place] = kept
        return kept.result  # type: ignore[no-any-return]

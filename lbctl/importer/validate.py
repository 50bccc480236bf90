"""Turns a draft into a valid fleet. Values that are invalid only in the whole fleet become comments with the reason.

Each value has already been checked by the draft. The remaining faults are missing keys, references, combinations of
keys, and findings from the compiler and targets.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lbctl.base import diagnostics as d
from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.importer.draft import NAMED, Draft
from lbctl.importer.refusals import refusals
from lbctl.importer.write import text
from lbctl.model.fleet import parse
from lbctl.model.load import SourceText
from lbctl.targets.load import complete

_MAX_REPAIRS = 3
"""Maximum number of repairs of the whole fleet.

The compiler reports all its findings at once. Removing an object leaves references to it. Targets check a fleet only if
it compiles.
"""


def settle(draft: Draft) -> list[Diagnostic]:
    """Remove invalid parts and return the remaining errors, normally none.

    The whole fleet is validated once, and again only after a repair.
    """
    for _ in range(_MAX_REPAIRS):
        _complete(draft)
        errors = _errors(draft)
        if not draft.leave_out(errors):
            return errors
    _complete(draft)
    return _errors(draft)


def _complete(draft: Draft) -> None:
    """Remove rejected values that were kept for the whole object, and objects with a missing key."""
    for section in NAMED:
        for name in list(draft.fleet.get(section, ())):
            _complete_object(draft, (section, name))


def _complete_object(draft: Draft, path: d.Path) -> None:
    before: list[Diagnostic] | None = None
    while (value := draft.get(path)) is not None:
        faults = [_in_words(path, item) for item in refusals(path, value, whole=True)]
        if faults == before or not draft.leave_out(faults):
            return
        before = faults


def _in_words(path: d.Path, fault: Diagnostic) -> Diagnostic:
    """Return a fault with a message for converted configurations, in which a pool may have lost all its replicas."""
    is_empty = path[0] == "pools" and fault.path == path and fault.code == "LB014"
    return replace(fault, message="the pool has no replica") if is_empty else fault


def _errors(draft: Draft) -> list[Diagnostic]:
    diagnostics = Diagnostics()
    source = parse([SourceText("import", text(draft, "", "").encode(), ".")], diagnostics)
    if source is not None and not diagnostics.failed:
        own = {str(Path(name)): content.encode() for name, content in draft.own_files().items()}
        complete(replace(source, target_contents=own), diagnostics)
    return [item for item in diagnostics if item.severity == "error" and item.code not in {"LB001", "LB503"}]

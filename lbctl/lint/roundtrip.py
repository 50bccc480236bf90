"""Fixes by ruamel.yaml, for edits that `fix` cannot make in place.

ruamel.yaml determines which lines an edit changes, and only those lines are taken from its output. It parses and writes
the whole file several times, which takes a minute for ten thousand replicas.
"""

from __future__ import annotations

import difflib
import io
from collections.abc import Sequence
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import ScalarString

from lbctl.base.diagnostics import Diagnostics, Path
from lbctl.lint.fix import candidate_paths
from lbctl.lint.rule import Edit
from lbctl.lint.run import Fix
from lbctl.model.load import SourceText
from lbctl.model.node import plain_value
from lbctl.model.yaml import read

_INDENTS = ((2, 4, 2), (2, 2, 0), (4, 6, 4), (4, 4, 0), (4, 4, 2))
"""The usual indents of maps, of lists, and of the dash within lists."""


def through_ruamel(text: SourceText, fixes: Sequence[Fix]) -> bytes:
    """Return the text with the fixes that could be applied; unchanged if the result would not parse as intended."""
    before = text.data.decode()
    try:
        yaml, base = _closest_settings(before)
        document = yaml.load(before)
    except YAMLError:
        return text.data
    applied = [fix for fix in fixes if _edit(document, fix)]
    if not applied:
        return text.data
    after = _transplanted(before, base, _dumped(yaml, document)).encode()
    parsed = read(after, text.name, Diagnostics())
    return after if parsed is not None and plain_value(parsed) == document else text.data


def _closest_settings(text: str) -> tuple[YAML, str]:
    """The settings with which ruamel.yaml reproduces the text best, and its output with them."""
    best: tuple[int, YAML, str] | None = None
    for mapping, sequence, offset in _INDENTS:
        yaml = YAML()
        yaml.preserve_quotes = True
        yaml.width = 100_000
        yaml.indent(mapping=mapping, sequence=sequence, offset=offset)
        dumped = _dumped(yaml, yaml.load(text))
        differences = sum(a != b for a, b in zip(text.splitlines(), dumped.splitlines(), strict=False))
        if best is None or differences < best[0]:
            best = (differences, yaml, dumped)
        if not differences:
            break
    assert best is not None
    return best[1], best[2]


def _dumped(yaml: YAML, document: Any) -> str:
    out = io.StringIO()
    yaml.dump(document, out)
    return out.getvalue()


def _transplanted(text: str, base: str, edited: str) -> str:
    """Return `text` with the lines that differ between `base`, the same in ruamel's form, and `edited`."""
    lines, base_lines, edited_lines = text.splitlines(keepends=True), base.splitlines(), edited.splitlines()
    if len(lines) != len(base_lines):
        return text
    newline = "\r\n" if lines[0].endswith("\r\n") else "\n"
    out: list[str] = []
    for tag, first, last, start, stop in difflib.SequenceMatcher(
        None, base_lines, edited_lines, autojunk=False
    ).get_opcodes():
        if tag == "equal":
            out += lines[first:last]
        elif last - first == stop - start:
            out += map(_with_frame, lines[first:last], edited_lines[start:stop])
        else:
            out += [line + newline for line in edited_lines[start:stop]]
    return "".join(out)


def _with_frame(old: str, new: str) -> str:
    """Return the new line with the indent and the line end of the old one."""
    return old[: len(old) - len(old.lstrip())] + new.lstrip() + old[len(old.rstrip("\r\n")) :]


def _edit(document: Any, fix: Fix) -> bool:
    """Apply the edit at its own path, or in the defaults from which the value came; return whether it was applied."""
    for path in candidate_paths(fix.edit.path):
        parent = _at_path(document, path[:-1])
        if isinstance(parent, CommentedMap) and _is_target(parent, path[-1], fix):
            return _assign(parent, path[-1], fix.edit)
    return False


def _at_path(document: Any, path: Path) -> Any:
    current = document
    for step in path:
        try:
            current = current[step]
        except (KeyError, IndexError, TypeError):
            return None
    return current


def _is_target(parent: CommentedMap, key: str | int, fix: Fix) -> bool:
    """Whether this is the map of the finding: it holds the value that was checked, or also lacks it."""
    if not fix.written:
        return key not in parent
    return key in parent and int(parent.lc.value(key)[0]) + 1 == fix.at.line


def _assign(parent: CommentedMap, key: str | int, edit: Edit) -> bool:
    if edit.value is None:
        return _remove(parent, key)
    old = parent.get(key)
    parent[key] = type(old)(edit.value) if isinstance(old, ScalarString) else edit.value
    return True


def _remove(parent: CommentedMap, key: str | int) -> bool:
    """Remove the key, unless it has comments that belong to what follows."""
    if str(parent.ca.items.get(key, "")).count("#") > 1:
        return False
    del parent[key]
    return True

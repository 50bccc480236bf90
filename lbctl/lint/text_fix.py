"""Fixes of one file as edits of its lines; the result is parsed again to verify it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lbctl.base.diagnostics import Diagnostics, Path
from lbctl.lint.fix_location import candidate_paths
from lbctl.lint.rule import Value
from lbctl.lint.run import Fix
from lbctl.lint.scalar_style import scalar_text, with_key, with_value, without_key
from lbctl.model.load import SourceText
from lbctl.model.node import Node, descend, plain_value
from lbctl.model.yaml import read

_LINE = re.compile(r"[^\n]*\n|[^\n]+")


@dataclass(frozen=True, slots=True)
class _TextEdit:
    """One edit."""

    path: Path
    parent: Node
    """The map that is edited."""
    old: Node | None
    """The present value of the key, if any."""
    value: Value | None
    """None removes the key."""

    @property
    def at(self) -> tuple[int, int]:
        node = self.old or self.parent
        return node.line, node.column


def text_fix(text: SourceText, fixes: Sequence[Fix]) -> bytes | None:
    """Apply the fixes that belong to this file; None if edits of lines cannot do it."""
    root = read(text.data, text.name, Diagnostics())
    if root is None:
        return None
    edits = {edit.path: edit for fix in fixes if (edit := _edit_for(root, fix))}
    lines: list[str] = _LINE.findall(text.data.decode())
    for edit in sorted(edits.values(), key=lambda fix: fix.at, reverse=True):
        if not _apply(lines, edit):
            return None
    data = "".join(lines).encode()
    parsed = read(data, text.name, Diagnostics())
    return data if parsed is not None and plain_value(parsed) == _expected(root, list(edits.values())) else None


def _edit_for(root: Node, fix: Fix) -> _TextEdit | None:
    for path in candidate_paths(fix.edit.path):
        parent = descend(root, path[:-1])
        if parent is None or not isinstance(parent.value, dict):
            continue
        old = parent.value.get(str(path[-1]))
        if (old is not None and old.line == fix.at.line) if fix.written else old is None:
            return _TextEdit(path, parent, old, fix.edit.value)
    return None


def _apply(lines: list[str], edit: _TextEdit) -> bool:
    """Apply the edit to the lines; return whether that was possible."""
    if edit.old is None:
        return _insert_key(lines, edit)
    if isinstance(edit.old.value, dict | list):
        return False
    line = lines[edit.old.line - 1]
    if edit.value is not None:
        new = with_value(line, edit.old.column - 1, edit.value)
    elif edit.old.key_line == edit.old.line:
        new = without_key(line, edit.old.key_column - 1, edit.old.column - 1)
    else:
        new = None
    lines[edit.old.line - 1] = line if new is None else new
    return new is not None


def _insert_key(lines: list[str], edit: _TextEdit) -> bool:
    """Insert a key: in a flow map at its end, in a block below the last of its scalars."""
    if edit.value is None or not isinstance(edit.parent.value, dict):
        return False
    key, index = str(edit.path[-1]), edit.parent.line - 1
    new = with_key(lines[index], edit.parent.column - 1, key, edit.value)
    if new is not None:
        lines[index] = new
        return True
    scalars = [node for node in edit.parent.value.values() if node.key_line == node.line and not _is_collection(node)]
    if not scalars:
        return False
    last = max(scalars, key=lambda node: node.line)
    line = lines[last.line - 1]
    end = line[len(line.rstrip("\r\n")) :]
    lines.insert(last.line, f"{' ' * (last.key_column - 1)}{key}: {scalar_text(edit.value)}{end}")
    return bool(end)


def _is_collection(node: Node) -> bool:
    return isinstance(node.value, dict | list)


def _expected(root: Node, tasks: Sequence[_TextEdit]) -> Any:
    """The value that the edited file must have."""
    expected = plain_value(root)
    for edit in tasks:
        current = expected
        for step in edit.path[:-1]:
            current = current[step]
        if edit.value is None:
            del current[edit.path[-1]]
        else:
            current[edit.path[-1]] = edit.value
    return expected

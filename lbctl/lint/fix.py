"""Applies certain fixes to the files: values change, comments and everything else are kept.

A fix edits the text at the value's own position. If the edited text would not parse as intended, the file is fixed by
ruamel.yaml instead; if that fails too, the file is left unchanged, and its findings remain.

A scalar is replaced in its own quotes, and a key of a flow map is added before its end or removed with its comma.
Values that span several lines, have tags or are in a block are not supported.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path as File
from typing import Any

from lbctl.base.diagnostics import Diagnostics, Path
from lbctl.lint.ignores import Ignore
from lbctl.lint.rule import Value
from lbctl.lint.run import Fix
from lbctl.model.load import SourceText
from lbctl.model.node import Node, descend, plain_value
from lbctl.model.yaml import read

_CODES = re.compile(r"LB[0-9]{3}", re.IGNORECASE)
_DEFAULTS = {"pools": "pool", "routes": "route"}
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"\\]|\\.)*\"")
_IN_FLOW = re.compile(r"[^\s,\[\]{}#'\"&*!|>%@`][^,\[\]{}\n\r]*?(?=\s*(?:[,\]}\n\r]|\s#|$))")
_IN_BLOCK = re.compile(r"[^\s,\[\]{}#'\"&*!|>%@`][^\n\r]*?(?=\s*(?:[\n\r]|\s#|$))")
_GAP = "gap"
_BARE = re.compile(r"[A-Za-z0-9_/.%-]+")


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


def apply_fixes(texts: Sequence[SourceText], fixes: Iterable[Fix]) -> list[SourceText]:
    """Return the texts with every fix that could be applied."""
    by_file: dict[str, list[Fix]] = {}
    for fix in fixes:
        by_file.setdefault(fix.at.file, []).append(fix)
    return [_apply_to_text(text, by_file[text.name]) if text.name in by_file else text for text in texts]


def remove_comments(texts: Sequence[SourceText], unused: Iterable[Ignore]) -> list[SourceText]:
    """Return the texts without codes of ignore comments that silence nothing; a comment without codes is removed."""
    by_file: dict[str, dict[int, tuple[int, set[str]]]] = {}
    for comment in unused:
        position = comment.position
        by_file.setdefault(position.file, {}).setdefault(position.line, (position.column, set()))[1].add(comment.code)
    return [_without_comments(text, by_file[text.name]) if text.name in by_file else text for text in texts]


def replace_file(file: File, data: bytes) -> None:
    """Replace the content of the file atomically; symbolic links and the mode are kept. Raises OSError."""
    target = file.resolve(strict=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(data)
            out.flush()
            os.fchmod(out.fileno(), stat.S_IMODE(target.stat().st_mode))
            os.fsync(out.fileno())
        File(temporary).replace(target)
    except OSError:
        File(temporary).unlink(missing_ok=True)
        raise


def _apply_to_text(text: SourceText, fixes: Sequence[Fix]) -> SourceText:
    data = _text_fix(text, fixes)
    if data is None:
        from lbctl.lint.roundtrip import through_ruamel  # slow to import, and seldom needed

        data = through_ruamel(text, fixes)
    return replace(text, data=data)


def _without_comments(text: SourceText, by_line: dict[int, tuple[int, set[str]]]) -> SourceText:
    lines = text.data.decode().splitlines(keepends=True)
    for number, (column, removed) in by_line.items():
        line = lines[number - 1]
        before, comment = line[: column - 1], line[column - 1 :]
        remaining = [code for code in _CODES.findall(comment.partition("(")[0]) if code.upper() not in removed]
        end = "\n" if line.endswith("\n") else ""
        if remaining:
            codes, reason = ", ".join(remaining), comment.partition("(")[2]
            lines[number - 1] = f"{before}# lbctl: ignore {codes} ({reason}"
        else:
            lines[number - 1] = before.rstrip() + end if before.strip() else ""
    return replace(text, data="".join(lines).encode())


def _text_fix(text: SourceText, fixes: Sequence[Fix]) -> bytes | None:
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
        new = _with_value(line, edit.old.column - 1, edit.value)
    elif edit.old.key_line == edit.old.line:
        new = _without_key(line, edit.old.key_column - 1, edit.old.column - 1)
    else:
        new = None
    lines[edit.old.line - 1] = line if new is None else new
    return new is not None


def _insert_key(lines: list[str], edit: _TextEdit) -> bool:
    """Insert a key: in a flow map at its end, in a block below the last of its scalars."""
    if edit.value is None or not isinstance(edit.parent.value, dict):
        return False
    key, index = str(edit.path[-1]), edit.parent.line - 1
    new = _with_key(lines[index], edit.parent.column - 1, key, edit.value)
    if new is not None:
        lines[index] = new
        return True
    scalars = [node for node in edit.parent.value.values() if node.key_line == node.line and not _is_collection(node)]
    if not scalars:
        return False
    last = max(scalars, key=lambda node: node.line)
    line = lines[last.line - 1]
    end = line[len(line.rstrip("\r\n")) :]
    lines.insert(last.line, f"{' ' * (last.key_column - 1)}{key}: {_scalar_text(edit.value)}{end}")
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


def candidate_paths(path: Path) -> list[Path]:
    """The path itself, and that in the defaults from which its value may come."""
    kind = _DEFAULTS.get(str(path[0]))
    return [path, ("defaults", kind, *path[2:])] if kind else [path]


def _with_value(line: str, column: int, value: Value) -> str | None:
    """Replace the scalar that begins at `column`, counted from 0, by `value`; None if unsupported."""
    quoted = _QUOTED.match(line, column)
    match = quoted or (_IN_FLOW if _open(line[:column]) else _IN_BLOCK).match(line, column)
    if match is None:
        return None
    return line[:column] + _scalar_text(value, line[column] if quoted else "") + line[match.end() :]


def _scalar_text(value: Value, quote: str = "") -> str:
    """Format a scalar in YAML; text keeps its quotes, or is quoted if necessary."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return str(value)
    if quote == "'" or not (quote or _BARE.fullmatch(value)):
        return "'" + value.replace("'", "''") + "'"
    if not quote:
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _with_key(line: str, column: int, key: str, value: Value) -> str | None:
    """Return the line with a further key in the flow map that begins at `column`; None if unsupported."""
    end = _end(line, column)
    if end is None or line[column] != "{":
        return None
    inner = line[column + 1 : end]
    before = inner.rstrip()
    comma = "" if not before else " " if before.endswith(",") else ", "
    return f"{line[: column + 1]}{before}{comma}{key}: {_scalar_text(value)}{inner[len(before) :]}{line[end:]}"


def _without_key(line: str, key: int, column: int) -> str | None:
    """Return the line without the key at `key` and its scalar at `column`; empty if nothing else is on it."""
    remaining = _with_value(line, column, _GAP)
    if remaining is None:
        return None
    before, after = line[:key], remaining[column + len(_GAP) :]
    if not before.strip() and not after.strip():
        return ""
    if not _open(before):
        return None
    following = re.match(r"\s*,\s*", after)
    return before + after[following.end() :] if following else re.sub(r",\s*$", "", before) + after


def _end(line: str, column: int) -> int | None:
    """The end of the flow collection that begins at `column`, if it is on this line."""
    depth, index = 0, column
    while index < len(line):
        quoted = _QUOTED.match(line, index) if line[index - 1 : index] in ("", " ", ",", "[", "{", ":") else None
        if quoted is not None:
            index = quoted.end()
            continue
        if line[index] == "#" and line[index - 1] == " ":
            return None
        depth += (line[index] in "[{") - (line[index] in "]}")
        if depth == 0:
            return index
        index += 1
    return None


def _open(before: str) -> bool:
    """Whether a flow collection is open at the end of this prefix of a line."""
    unquoted = _QUOTED.sub("", before)
    return sum(unquoted.count(bracket) for bracket in "[{") > sum(unquoted.count(bracket) for bracket in "]}")

"""Applies safe fixes to fleet files, preserving comments and all other text.

A fix edits the text in place: it replaces a scalar while keeping its quotes, adds a key to a map, or removes a key. All
other lines remain unchanged, byte for byte. A fix is skipped if the file's layout does not permit it. The new text is
parsed again and discarded unless it contains the intended values. If a fix is skipped or discarded, the finding
remains.
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
_NUMBER = re.compile(r"[^\s,\[\]{}#'\"]+")
"""A plain scalar that is not a string: a number, `true`, `false` or `null`."""
_BARE = re.compile(r"[A-Za-z0-9_/.%-]+")


@dataclass(frozen=True, slots=True)
class _TextEdit:
    """One edit."""

    path: Path
    parent: Node
    old: Node | None
    """Current value of the key, or None if the key is absent."""
    value: Value | None
    """New value; None removes the key."""

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
    """Return the texts without unused codes in ignore comments. A comment without codes is removed."""
    by_file: dict[str, dict[int, tuple[int, set[str]]]] = {}
    for comment in unused:
        position = comment.position
        by_file.setdefault(position.file, {}).setdefault(position.line, (position.column, set()))[1].add(comment.code)
    return [_without_comments(text, by_file[text.name]) if text.name in by_file else text for text in texts]


def replace_file(file: File, data: bytes) -> None:
    """Atomically replace the file's contents, preserving symbolic links and the file mode. Raises OSError."""
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
    """Apply the file's fixes that its layout permits, and return the new text."""
    root = read(text.data, text.name, Diagnostics())
    if root is None:
        return text
    edits = {edit.path: edit for fix in fixes if (edit := _edit_for(root, fix))}
    lines: list[str] = _LINE.findall(text.data.decode())
    made = [edit for edit in sorted(edits.values(), key=lambda edit: edit.at, reverse=True) if _apply(lines, edit)]
    data = "".join(lines).encode()
    parsed = read(data, text.name, Diagnostics())
    return replace(text, data=data) if parsed is not None and plain_value(parsed) == _expected(root, made) else text


def _without_comments(text: SourceText, by_line: dict[int, tuple[int, set[str]]]) -> SourceText:
    lines = text.data.decode().splitlines(keepends=True)
    for number, (column, removed) in by_line.items():
        line = lines[number - 1]
        before, comment = line[: column - 1], line[column - 1 :]
        remaining = [code for code in _CODES.findall(comment.partition("(")[0]) if code.upper() not in removed]
        end = _line_end(line)
        if remaining:
            codes, reason = ", ".join(remaining), comment.partition("(")[2]
            lines[number - 1] = f"{before}# lbctl: ignore {codes} ({reason}"
        else:
            lines[number - 1] = before.rstrip() + end if before.strip() else ""
    return replace(text, data="".join(lines).encode())


def _edit_for(root: Node, fix: Fix) -> _TextEdit | None:
    for path in _candidate_paths(fix.edit.path):
        parent = descend(root, path[:-1])
        if parent is None or not isinstance(parent.value, dict):
            continue
        old = parent.value.get(str(path[-1]))
        if (old is not None and old.line == fix.at.line) if fix.written else old is None:
            return _TextEdit(path, parent, old, fix.edit.value)
    return None


def _apply(lines: list[str], edit: _TextEdit) -> bool:
    """Apply the edit without changing the length of `lines`. Return whether this was possible."""
    if edit.old is None:
        return _insert_key(lines, edit)
    if edit.value is None:
        return _remove_key(lines, edit.parent, edit.old)
    return _replace_scalar(lines, edit.old, edit.value) or _replace_words(lines, edit.old, edit.value)


def _replace_scalar(lines: list[str], old: Node, value: Value) -> bool:
    line, start = lines[old.line - 1], old.column - 1
    end = _scalar_end(line, old)
    if end is None:
        return False
    quote = line[start] if line[start] in "'\"" else ""
    lines[old.line - 1] = line[:start] + _scalar_text(value, quote) + line[end:]
    return True


def _replace_words(lines: list[str], old: Node, value: Value) -> bool:
    """Replace words in a string that spans several lines, keeping each word on its line."""
    if not isinstance(old.value, str) or not isinstance(value, str):
        return False
    before, after = old.value.split(), value.split()
    if len(before) != len(after):
        return False
    index, column, places = old.line - 1, old.column - 1, []
    for word in before:
        while (found := lines[index].find(word, column)) < 0:
            index, column = index + 1, 0
            if index == len(lines):
                return False
        places.append((index, found, found + len(word)))
        column = found + len(word)
    for (index, start, end), word in reversed(list(zip(places, after, strict=True))):
        lines[index] = lines[index][:start] + word + lines[index][end:]
    return True


def _insert_key(lines: list[str], edit: _TextEdit) -> bool:
    """Insert a key and return whether this was possible.

    In a block map, the key is added on a new line. In a flow map, it is added at the end, or at the start if the map
    spans several lines.
    """
    if edit.value is None:
        return False
    pair = f"{edit.path[-1]}: {_scalar_text(edit.value)}"
    line, start = lines[edit.parent.line - 1], edit.parent.column - 1
    if line[start] != "{":
        return _insert_line(lines, edit.parent, pair)
    end = _flow_end(line, start)
    if end is None:
        rest = line[start + 1 :].lstrip(" ")
        lines[edit.parent.line - 1] = f"{line[: start + 1]}{pair},{' ' if rest.strip() else ''}{rest}"
        return True
    inner = line[start + 1 : end]
    before = inner.rstrip()
    comma = "" if not before else " " if before.endswith(",") else ", "
    lines[edit.parent.line - 1] = f"{line[: start + 1]}{before}{comma}{pair}{inner[len(before) :]}{line[end:]}"
    return True


def _insert_line(lines: list[str], parent: Node, pair: str) -> bool:
    """Insert a line into a block map, below its last one-line entry, or below the map's own key."""
    fields = list(parent.value.values()) if isinstance(parent.value, dict) else []
    above = max((node.line for node in fields if _is_one_line(lines, node)), default=parent.key_line)
    if not above:
        return False
    line, indent = lines[above - 1], " " * (fields[0].key_column - 1)
    end = _line_end(line)
    lines[above - 1] = f"{line}{indent}{pair}{end}" if end else f"{line}{_line_end(lines[0])}{indent}{pair}"
    return True


def _remove_key(lines: list[str], parent: Node, old: Node) -> bool:
    """Remove a key and its scalar. If the line contains nothing else, remove the line with its comment."""
    line, start = lines[old.line - 1], old.key_column - 1
    end = _scalar_end(line, old)
    if end is None or old.key_line != old.line:
        return False
    before, after = line[:start], line[end:]
    if not before.strip() and not after.lstrip().removeprefix(",").partition("#")[0].strip():
        is_only_key = isinstance(parent.value, dict) and len(parent.value) == 1
        is_block = parent.line == old.line and parent.column == old.key_column
        lines[old.line - 1] = f"{before}{{}}{after}" if is_only_key and is_block else ""
        return True
    if not _is_in_flow(before):
        return False
    following = re.match(r"\s*,\s*", after)
    lines[old.line - 1] = before + after[following.end() :] if following else re.sub(r",\s*$", "", before) + after
    return True


def _is_one_line(lines: list[str], node: Node) -> bool:
    """Return whether a key and its entire value are on one line."""
    line = lines[node.line - 1]
    if node.key_line != node.line:
        return False
    if isinstance(node.value, dict | list):
        return line[node.column - 1] in "[{" and _flow_end(line, node.column - 1) is not None
    return _scalar_end(line, node) is not None


def _expected(root: Node, edits: Iterable[_TextEdit]) -> Any:
    """Return the value that the edited file must have."""
    expected = plain_value(root)
    for edit in edits:
        current = expected
        for step in edit.path[:-1]:
            current = current[step]
        if edit.value is None:
            del current[edit.path[-1]]
        else:
            current[edit.path[-1]] = edit.value
    return expected


def _candidate_paths(path: Path) -> list[Path]:
    """Return the path itself and the path in `defaults` from which the value may come."""
    kind = _DEFAULTS.get(str(path[0]))
    return [path, ("defaults", kind, *path[2:])] if kind else [path]


def _scalar_end(line: str, node: Node) -> int | None:
    """Return the index where a scalar ends; None if it is not a scalar, or if it continues on the next line."""
    start = node.column - 1
    if quoted := _QUOTED.match(line, start):
        return quoted.end()
    if isinstance(node.value, str):
        return start + len(node.value) if node.value and line.startswith(node.value, start) else None
    plain = None if isinstance(node.value, dict | list) else _NUMBER.match(line, start)
    return plain.end() if plain else None


def _scalar_text(value: Value, quote: str = "") -> str:
    """Format a scalar as YAML; strings keep their quotes or are quoted if necessary."""
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


def _flow_end(line: str, column: int) -> int | None:
    """Return the index of the bracket that closes the flow collection at `column`; None if it is not on this line."""
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


def _is_in_flow(before: str) -> bool:
    """Return whether a flow collection is still open after this prefix of a line."""
    unquoted = _QUOTED.sub("", before)
    return sum(unquoted.count(bracket) for bracket in "[{") > sum(unquoted.count(bracket) for bracket in "]}")


def _line_end(line: str) -> str:
    return line[len(line.rstrip("\r\n")) :]

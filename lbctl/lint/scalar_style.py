"""Edits a YAML text at the position of one value; everything around it remains unchanged, byte for byte.

A scalar is replaced in its own quotes, and a key of a flow map is added before its end or removed with its comma.
Values that span several lines, have tags or are in a block are not supported: the result is then None, and the caller
uses another method.
"""

from __future__ import annotations

import re

from lbctl.lint.rule import Value

_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"\\]|\\.)*\"")
_IN_FLOW = re.compile(r"[^\s,\[\]{}#'\"&*!|>%@`][^,\[\]{}\n\r]*?(?=\s*(?:[,\]}\n\r]|\s#|$))")
_IN_BLOCK = re.compile(r"[^\s,\[\]{}#'\"&*!|>%@`][^\n\r]*?(?=\s*(?:[\n\r]|\s#|$))")
_GAP = "gap"
_BARE = re.compile(r"[A-Za-z0-9_/.%-]+")


def with_value(line: str, column: int, value: Value) -> str | None:
    """Replace the scalar that begins at `column`, counted from 0, by `value`; None if unsupported."""
    quoted = _QUOTED.match(line, column)
    match = quoted or (_IN_FLOW if _open(line[:column]) else _IN_BLOCK).match(line, column)
    if match is None:
        return None
    return line[:column] + scalar_text(value, line[column] if quoted else "") + line[match.end() :]


def scalar_text(value: Value, quote: str = "") -> str:
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


def with_key(line: str, column: int, key: str, value: Value) -> str | None:
    """Return the line with a further key in the flow map that begins at `column`; None if unsupported."""
    end = _end(line, column)
    if end is None or line[column] != "{":
        return None
    inner = line[column + 1 : end]
    before = inner.rstrip()
    comma = "" if not before else " " if before.endswith(",") else ", "
    return f"{line[: column + 1]}{before}{comma}{key}: {scalar_text(value)}{inner[len(before) :]}{line[end:]}"


def without_key(line: str, key: int, column: int) -> str | None:
    """Return the line without the key at `key` and its scalar at `column`; empty if nothing else is on it."""
    remaining = with_value(line, column, _GAP)
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

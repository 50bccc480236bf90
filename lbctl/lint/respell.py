"""Edits of a YAML text at the place of one value: what stands around it is not read again, and stays to the byte.

A scalar is replaced in its own quotes, and a key of a flow map added before its end or taken away with its comma. It
makes nothing of what spans several lines, has tags or stands in a block: the answer is then None, and the caller has
another way.
"""

from __future__ import annotations

import re

from lbctl.lint.rule import Value

_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"\\]|\\.)*\"")
_IN_FLOW = re.compile(r"[^\s,\[\]{}#'\"&*!|>%@`][^,\[\]{}\n\r]*?(?=\s*(?:[,\]}\n\r]|\s#|$))")
_IN_BLOCK = re.compile(r"[^\s,\[\]{}#'\"&*!|>%@`][^\n\r]*?(?=\s*(?:[\n\r]|\s#|$))")
_GAP = "gap"
_BARE = re.compile(r"[A-Za-z0-9_/.%-]+")


def replaced(line: str, column: int, value: Value) -> str | None:
    """The line with `value` in the place of the scalar that begins at `column`, counted from 0."""
    quoted = _QUOTED.match(line, column)
    found = quoted or (_IN_FLOW if _open(line[:column]) else _IN_BLOCK).match(line, column)
    if found is None:
        return None
    return line[:column] + spelled(value, line[column] if quoted else "") + line[found.end() :]


def spelled(value: Value, quote: str = "") -> str:
    """As YAML has it; text in quotes where it had some, or needs them."""
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


def added(line: str, column: int, key: str, value: Value) -> str | None:
    """The line with one more key in the flow map that begins at `column`."""
    end = _end(line, column)
    if end is None or line[column] != "{":
        return None
    inner = line[column + 1 : end]
    before = inner.rstrip()
    comma = "" if not before else " " if before.endswith(",") else ", "
    return f"{line[: column + 1]}{before}{comma}{key}: {spelled(value)}{inner[len(before) :]}{line[end:]}"


def removed(line: str, key: int, column: int) -> str | None:
    """The line without the key at `key` and its scalar at `column`; empty where nothing else stood there."""
    without = replaced(line, column, _GAP)
    if without is None:
        return None
    before, after = line[:key], without[column + len(_GAP) :]
    if not before.strip() and not after.strip():
        return ""
    if not _open(before):
        return None
    following = re.match(r"\s*,\s*", after)
    return before + after[following.end() :] if following else re.sub(r",\s*$", "", before) + after


def _end(line: str, column: int) -> int | None:
    """Where the flow collection that begins at `column` ends, if on this line."""
    depth, here = 0, column
    while here < len(line):
        quoted = _QUOTED.match(line, here) if line[here - 1 : here] in ("", " ", ",", "[", "{", ":") else None
        if quoted is not None:
            here = quoted.end()
            continue
        if line[here] == "#" and line[here - 1] == " ":
            return None
        depth += (line[here] in "[{") - (line[here] in "]}")
        if depth == 0:
            return here
        here += 1
    return None


def _open(before: str) -> bool:
    """Whether a flow collection is open at the end of this beginning of a line."""
    plain = _QUOTED.sub("", before)
    return sum(plain.count(c) for c in "[{") > sum(plain.count(c) for c in "]}")

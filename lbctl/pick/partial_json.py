"""Parser for possibly truncated JSON: keeps everything before the cut and never raises an exception.

The picker receives only the beginning of a long body. The standard library parses a complete document in one step. If
that fails, this module keeps the complete members and the beginning of the last one. The work is bounded: the parser
descends at most `_MAX_DEPTH` levels and scans the text once per level. It keeps at most `_MAX_ITEMS` items of a
truncated list or object.
"""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]  # undocumented, but used by the stdlib's own parser

_MAX_DEPTH = 5
"""Depth of a message part: body, messages, message, content, part."""
_MAX_ITEMS = 1024
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()
_UNREADABLE = (ValueError, RecursionError)


def read(body: bytes) -> object:
    """Return the readable part of the body; None if nothing is readable."""
    text = body.decode("utf-8", "replace").lstrip("\ufeff")
    try:
        return _DECODER.decode(text)
    except _UNREADABLE:
        return _partial(text, _skip(text, 0), 0)[0]


def _skip(text: str, index: int) -> int:
    match = _SPACE.match(text, index)
    return match.end() if match else index


def _value(text: str, index: int, depth: int) -> tuple[object, int | None]:
    """Return the value that starts at `index` and the position at which it ends.

    For a truncated value, the end is None.
    """
    try:
        return _DECODER.raw_decode(text, index)
    except _UNREADABLE:
        return _partial(text, index, depth)


def _partial(text: str, index: int, depth: int) -> tuple[object, None]:
    opening = text[index : index + 1]
    if opening == '"':
        return _cut_string(text, index + 1), None
    if depth >= _MAX_DEPTH or opening not in ("{", "["):
        return None, None
    return (_members if opening == "{" else _items)(text, index + 1, depth + 1), None


def _members(text: str, index: int, depth: int) -> dict[str, object]:
    members: dict[str, object] = {}
    end: int | None = index
    while end is not None and len(members) < _MAX_ITEMS and text[(at := _skip(text, end)) : at + 1] == '"':
        try:
            key, end = scanstring(text, at + 1, False)
        except ValueError:
            return members
        colon = _skip(text, end)
        if text[colon : colon + 1] != ":":
            return members
        members[key], end = _value(text, _skip(text, colon + 1), depth)
        end = _after_comma(text, end)
    return members


def _items(text: str, index: int, depth: int) -> list[object]:
    items: list[object] = []
    end: int | None = index
    while end is not None and len(items) < _MAX_ITEMS and (at := _skip(text, end)) < len(text):
        item, end = _value(text, at, depth)
        items.append(item)
        end = _after_comma(text, end)
    return items


def _after_comma(text: str, end: int | None) -> int | None:
    if end is None:
        return None
    comma = _skip(text, end)
    return comma + 1 if text[comma : comma + 1] == "," else None


def _cut_string(text: str, index: int) -> str:
    """Return the truncated string that starts at `index`, without an incomplete escape sequence at the end."""
    for lost in range(7):
        try:
            return str(scanstring(text[: len(text) - lost] + '"', index, False)[0])
        except ValueError:
            continue
    return ""

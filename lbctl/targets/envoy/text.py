"""Envoy's configuration as YAML that people can read: block style, and what is short on one line.

PyYAML would need most of a render's time for ten thousand endpoints, and could not say which line a value went to. The
values are those of protobuf's JSON form (maps with known keys, lists, texts, numbers, booleans), so the grammar that
is written here is small: a text stands bare only where every reader of YAML takes it for a text, else in double quotes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from lbctl.base.diagnostics import Path

WIDTH = 140
_BARE = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*|\d+\.\d+\.\d+\.\d+|\d+(?:\.\d+)?s", re.ASCII)
_WORDS = frozenset(("true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf", "infinity"))
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff\ufffe\uffff]")

Sources = Mapping[int, Path]
"""`id` of a map in the tree → the path of the YAML value that it came from."""


class Writer:
    """Writes trees of plain values, line by line, and remembers whose each line is."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._lines: list[str] = []
        self._owners: dict[int, Path] = {}
        self._written: dict[tuple[int, int], range] = {}
        """(`id` of a list's map, column) → the lines that it was written to: one map may stand in many lists."""

    def write(self, tree: Mapping[str, object]) -> tuple[str, dict[int, Path]]:
        """The text, and line (from 1) → path."""
        self._map(tree, 0, "", ())
        return "\n".join(self._lines) + "\n", self._owners

    def _line(self, text: str, owner: Path) -> None:
        self._lines.append(text)
        if owner:
            self._owners[len(self._lines)] = owner

    def _map(self, tree: Mapping[str, object], column: int, lead: str, owner: Path) -> None:
        """Keys stand at `column`; `lead` (`- ` of a list item) is written before the first of them."""
        owner = self._sources.get(id(tree), owner)
        head = " " * (column - len(lead)) + lead
        for key, value in _named(tree):
            self._entry(f"{head}{scalar(key)}:", value, column, owner)
            head = " " * column

    def _entry(self, head: str, value: object, column: int, owner: Path) -> None:
        line = self._short(value, WIDTH - len(head))
        if line is not None:
            self._line(f"{head} {line}", self._owner(value, owner))
        elif isinstance(value, dict):
            self._line(head, self._owner(value, owner))
            self._map(value, column + 2, "", owner)
        elif isinstance(value, list):
            self._line(head, owner)
            self._list(value, column, owner)

    def _list(self, items: list[object], column: int, owner: Path) -> None:
        for item in items:
            line = self._short(item, WIDTH - column)
            if line is not None:
                self._line(f"{' ' * column}- {line}", self._owner(item, owner))
            elif isinstance(item, dict):
                self._item(item, column, owner)

    def _item(self, item: Mapping[str, object], column: int, owner: Path) -> None:
        """A map of a list. One with an owner of its own that was written before is copied."""
        before = self._written.get((id(item), column)) if id(item) in self._sources else None
        if before is not None:
            for number in before:
                self._line(self._lines[number], self._owners.get(number + 1, ()))
            return
        start = len(self._lines)
        self._map(item, column + 2, "- ", owner)
        self._written[id(item), column] = range(start, len(self._lines))

    def _owner(self, value: object, owner: Path) -> Path:
        return self._sources.get(id(value), owner)

    def _short(self, value: object, room: int) -> str | None:
        """The value on one line, unless it is too long for that or a list of things with names."""
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return None
        return flow(value, room)


def _named(tree: Mapping[str, object]) -> Iterable[tuple[str, object]]:
    """The items, a name first: people look for it there."""
    if "name" not in tree:
        return tree.items()
    return [("name", tree["name"]), *(item for item in tree.items() if item[0] != "name")]


def flow(value: object, room: int) -> str | None:
    """On one line; `None` as soon as that is sure to need more than `room` characters."""
    if isinstance(value, dict):
        return _joined("{", [(f"{scalar(key)}: ", item) for key, item in value.items()], "}", room)
    if isinstance(value, list):
        return _joined("[", [("", item) for item in value], "]", room)
    return scalar(value)


def _joined(first: str, items: list[tuple[str, object]], last: str, room: int) -> str | None:
    parts = []
    room -= 2
    for lead, item in items:
        text = flow(item, room - len(lead)) if isinstance(item, (dict, list)) else scalar(item)
        if text is None:
            return None
        room -= len(lead) + len(text) + 2
        if room < -2:
            return None
        parts.append(lead + text)
    return first + ", ".join(parts) + last


def scalar(value: object) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else _number(json.dumps(value))


def _number(text: str) -> str:
    """`1e-05` is a text for a reader of YAML 1.1; `1.0e-05` is a number for all."""
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


@lru_cache(maxsize=16_384)
def _text(value: str) -> str:
    if _BARE.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return _ESCAPED.sub(lambda found: f"\\u{ord(found.group()):04x}", json.dumps(value, ensure_ascii=False))

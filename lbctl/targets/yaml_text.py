"""Configuration as readable YAML in block style, with short values on one line for Envoy.

PyYAML would take most of the rendering time for ten thousand endpoints, and could not report a value's line. The values
have JSON types (maps with known keys, lists, strings, numbers, booleans), so a small part of the grammar is sufficient.
A string is written without quotes only if every YAML reader would read it as a string, and otherwise in double quotes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from lbctl.base.diagnostics import Path

WIDTH = 140
_BARE = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*|\d+\.\d+\.\d+\.\d+|\d+(?:\.\d+)?s", re.ASCII)
_RESERVED = frozenset(("true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf", "infinity"))
_LINES = re.compile(r"[!-~](?:[ -~]*[!-~])?\n(?:[ -~]*[!-~]\n)+")
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff\ufffe\uffff]")

Sources = Mapping[int, Path]
"""Maps the `id` of a map in the tree to the path of the YAML value that it is derived from."""


class Writer:
    """Writes trees of plain values line by line, and records the owner of each line."""

    def __init__(self, sources: Sources, *, block: bool = False) -> None:
        """`block`: whether each key and each list item is on a separate line, as in Kubernetes manifests."""
        self._sources = sources
        self._width = 0 if block else WIDTH
        self._lines: list[str] = []
        self._owners: dict[int, Path] = {}
        self._written: dict[tuple[int, int], range] = {}
        """Maps each (`id` of a map in a list, column) pair to the lines that it was written to. A map may occur in
        several lists."""

    def write(self, tree: Mapping[str, object]) -> tuple[str, dict[int, Path]]:
        """Return the text, and the owner of each line by line number, starting at 1."""
        self._map(tree, 0, "", ())
        return "\n".join(self._lines) + "\n", self._owners

    def _line(self, text: str, owner: Path) -> None:
        self._lines.append(text)
        if owner:
            self._owners[len(self._lines)] = owner

    def _map(self, tree: Mapping[str, object], column: int, lead: str, owner: Path) -> None:
        """Write a map with its keys at `column`.

        `lead` (`- ` of a list item) precedes the first key.
        """
        owner = self._sources.get(id(tree), owner)
        head = " " * (column - len(lead)) + lead
        for key, value in _name_first(tree):
            self._entry(f"{head}{scalar(key)}:", value, column, owner)
            head = " " * column

    def _entry(self, head: str, value: object, column: int, owner: Path) -> None:
        if not self._width and isinstance(value, str) and _is_literal(value):
            self._literal(head, value, column, owner)
            return
        line = self._short(value, self._width - len(head))
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
            line = self._short(item, self._width - column)
            if line is not None:
                self._line(f"{' ' * column}- {line}", self._owner(item, owner))
            elif isinstance(item, dict):
                self._item(item, column, owner)

    def _item(self, item: Mapping[str, object], column: int, owner: Path) -> None:
        """Write a map in a list. A map with an owner that was written before is copied."""
        written = self._written.get((id(item), column)) if id(item) in self._sources else None
        if written is not None:
            for number in written:
                self._line(self._lines[number], self._owners.get(number + 1, ()))
            return
        start = len(self._lines)
        self._map(item, column + 2, "- ", owner)
        self._written[id(item), column] = range(start, len(self._lines))

    def _literal(self, head: str, value: str, column: int, owner: Path) -> None:
        """Write a multi-line string as it is."""
        self._line(f"{head} |", owner)
        for line in value.splitlines():
            self._line(f"{' ' * (column + 2)}{line}", owner)

    def _owner(self, value: object, owner: Path) -> Path:
        return self._sources.get(id(value), owner)

    def _short(self, value: object, room: int) -> str | None:
        """Return the value on one line, or None if it is too long or a list of maps."""
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return None
        return flow(value, room)


def _is_literal(value: str) -> bool:
    """Return whether a string is several complete lines of printable ASCII that need no indentation indicator."""
    return _LINES.fullmatch(value) is not None


def _name_first(tree: Mapping[str, object]) -> Iterable[tuple[str, object]]:
    """Return the items of a map, starting with its name for readability."""
    if "name" not in tree:
        return tree.items()
    return [("name", tree["name"]), *(item for item in tree.items() if item[0] != "name")]


def flow(value: object, room: int) -> str | None:
    """Return the value on one line, or None as soon as it is certain to need more than `room` characters."""
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
    """Return a string, number or boolean as YAML."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else _number(json.dumps(value))


def _number(text: str) -> str:
    """Format a number so that every reader parses it as one: in YAML 1.1, `1e-05` is a string, `1.0e-05` a number."""
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


@lru_cache(maxsize=16_384)
def _text(value: str) -> str:
    if _BARE.fullmatch(value) and value.lower() not in _RESERVED:
        return value
    return _ESCAPED.sub(lambda match: f"\\u{ord(match.group()):04x}", json.dumps(value, ensure_ascii=False))

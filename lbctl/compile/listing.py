"""A JSON file of targets with the positions of its groups and targets, so that diagnostics can point at them."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lbctl.base.diagnostics import Position
from lbctl.base.foreign_json import InvalidJsonError, parse

_BETWEEN = re.compile(r"[\s,]*")
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"')


class NotAListError(ValueError):
    """The text is not a JSON list, or exceeds a bound. The message states which."""

    def __init__(self, reason: str, position: Position) -> None:
        super().__init__(reason)
        self.position = position


@dataclass(frozen=True, slots=True)
class TargetGroup:
    """One group of a file_sd file."""

    value: Any
    """The group as JSON has it."""
    position: Position
    """Where the group begins in the file."""
    positions: dict[str, Position]
    """Each string of the group → where it occurs first."""

    def position_of(self, target: object) -> Position:
        """Return the position of a target; that of the group if it is no string of it."""
        return self.positions.get(target, self.position) if isinstance(target, str) else self.position


def groups(file: str, text: str) -> list[TargetGroup]:
    """Parse the groups of the list in `text`. Raises NotAListError."""
    try:
        document = parse(text)
    except InvalidJsonError as error:
        raise NotAListError(str(error), Position(file, error.line, error.column)) from None
    if not isinstance(document, list):
        raise NotAListError("JSON that is not a list", Position(file, 1, 1))
    return list(_groups(file, text, len(document)))


def _groups(file: str, text: str, count: int) -> Iterator[TargetGroup]:
    decoder, end = json.JSONDecoder(), text.index("[") + 1
    lines = [0, *(newline.end() for newline in re.finditer("\n", text))]

    def position(offset: int) -> Position:
        line = bisect_right(lines, offset)
        return Position(file, line, offset - lines[line - 1] + 1)

    for _ in range(count):
        separator = _BETWEEN.match(text, end)
        start = separator.end() if separator else end
        value, end = decoder.raw_decode(text, start)
        positions: dict[str, Position] = {}
        for string in _WORD.finditer(text, start, end):
            positions.setdefault(json.loads(string[0]), position(string.start()))
        yield TargetGroup(value, position(start), positions)

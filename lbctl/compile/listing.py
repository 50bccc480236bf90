"""A file of targets as JSON that knows where its groups and targets stand: what is wrong in it is told by its place."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lbctl.base.diagnostics import Position

_BETWEEN = re.compile(r"[\s,]*")
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"')


class NoListError(ValueError):
    """The text is no list in JSON; `position`: where that shows."""

    def __init__(self, position: Position) -> None:
        super().__init__(str(position))
        self.position = position


@dataclass(frozen=True, slots=True)
class Group:
    """`places`: a text of the group → where it stands first."""

    value: Any
    position: Position
    places: dict[str, Position]

    def place(self, target: object) -> Position:
        return self.places.get(target, self.position) if isinstance(target, str) else self.position


def groups(file: str, text: str) -> list[Group]:
    """What the list in `text` holds. Raises NoListError."""
    try:
        whole = json.loads(text)
    except json.JSONDecodeError as error:
        raise NoListError(Position(file, error.lineno, error.colno)) from None
    except RecursionError:
        raise NoListError(Position(file, 1, 1)) from None
    if not isinstance(whole, list):
        raise NoListError(Position(file, 1, 1))
    return list(_groups(file, text, len(whole)))


def _groups(file: str, text: str, count: int) -> Iterator[Group]:
    decoder, at = json.JSONDecoder(), text.index("[") + 1
    lines = [0, *(found.end() for found in re.finditer("\n", text))]

    def position(place: int) -> Position:
        line = bisect_right(lines, place)
        return Position(file, line, place - lines[line - 1] + 1)

    for _ in range(count):
        between = _BETWEEN.match(text, at)
        start = between.end() if between else at
        value, at = decoder.raw_decode(text, start)
        places: dict[str, Position] = {}
        for word in _WORD.finditer(text, start, at):
            places.setdefault(json.loads(word[0]), position(word.start()))
        yield Group(value, position(start), places)

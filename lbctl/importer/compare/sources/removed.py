"""What a comparison does not run of a configuration: left out where that changes no answer, or closed.

A closed route responds with `CLOSED_STATUS` and a header that names the directive by its number, so that a row of the
table shows why its request was not compared. No text of the configuration gets into that answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.base.diagnostics import Position
from lbctl.importer.draft import printable
from lbctl.importer.statement import Statement
from lbctl.importer.write import place_of

LOST_REPLICAS = "replicas that the fleet has not"
"""Servers that the import left out. They get no requests, so that answers do not depend on whose turn it is."""
_MAX_WORD = 80
CLOSED_HEADER = "x-lbctl-closed"
"""The header of the answer of a route that the comparison closed: the number of the directive among those removed."""


@dataclass(frozen=True, slots=True)
class Removed:
    """A directive that does not run."""

    position: Position
    """Where it is in the configuration."""
    name: str
    reason: str
    """Why it does not run."""
    closes: bool
    """Whether requests that would meet it are answered with `CLOSED_STATUS` instead."""
    word: str = ""
    """The part of it that must not run; empty for the whole directive."""

    @property
    def text(self) -> str:
        """Where it is, its name, and why it does not run, as one line."""
        words = " ".join(filter(None, (place_of(self.position), self.name)))
        return printable(f"{words}, {f'`{self.word}` is ' if self.word else ''}{self.reason}")


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A configuration made anew for loopback."""

    text: str
    """The configuration that runs."""
    removed: tuple[Removed, ...] = ()
    """The directives that it lacks; `CLOSED_HEADER` counts them from 0."""


class ClosedError(Exception):
    """A directive must not run, and the block around it has to be closed."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        """The number of the directive among those removed."""


class Removals:
    """Collects the directives that do not run, each once."""

    def __init__(self) -> None:
        self._numbers: dict[Statement, int] = {}
        self._items: list[Removed] = []

    @property
    def items(self) -> tuple[Removed, ...]:
        """The directives that do not run."""
        return tuple(self._items)

    def leave_out(self, item: Statement, reason: str, name: str = "") -> None:
        """Record a directive without which the answers are the same; `name` replaces its own."""
        self._add(item, reason, name, closes=False)

    def close(self, item: Statement, reason: str, word: str = "") -> ClosedError:
        """Record a directive that closes the block around it, and return the exception to raise.

        `word` is the part that must not run.
        """
        return ClosedError(self._add(item, reason, word=_shortened(word), closes=True))

    def _add(self, item: Statement, reason: str, name: str = "", word: str = "", *, closes: bool) -> int:
        if item not in self._numbers:
            self._numbers[item] = len(self._items)
            # An item of a list has no name, only a place.
            shown = name or item.name.removeprefix("-")
            self._items.append(Removed(item.position, shown, reason, closes, word))
        return self._numbers[item]


def _shortened(word: str) -> str:
    return word if len(word) <= _MAX_WORD else f"{word[:_MAX_WORD]}…"

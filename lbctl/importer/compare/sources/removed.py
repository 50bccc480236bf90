"""The parts of a configuration that a comparison does not run.

Such parts are omitted if responses do not depend on them, and closed otherwise.

A closed route responds with `CLOSED_STATUS` and a header that contains the number of the directive, so that a row of
the table shows why its request was not compared. The response contains no text from the configuration.
"""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.base.diagnostics import Position
from lbctl.importer.draft import printable
from lbctl.importer.statement import Statement
from lbctl.importer.write import place_of

LOST_REPLICAS = "replicas that are not in the fleet"
"""Servers that the import omitted. They receive no requests, so responses do not depend on the order of servers."""
_MAX_WORD = 80
CLOSED_HEADER = "x-lbctl-closed"
"""Response header of a closed route that contains the index of the removed directive."""


@dataclass(frozen=True, slots=True)
class Removed:
    """A directive that is not run."""

    position: Position
    """Position in the configuration."""
    name: str
    reason: str
    """The reason why the directive is not run."""
    closes: bool
    """Whether the response to matching requests is `CLOSED_STATUS` instead."""
    word: str = ""
    """Part that must not be run, or an empty string for the whole directive."""

    @property
    def text(self) -> str:
        """Position, name and reason on a single line."""
        words = " ".join(filter(None, (place_of(self.position), self.name)))
        return printable(f"{words}, {f'`{self.word}` is ' if self.word else ''}{self.reason}")


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A configuration rebuilt for loopback."""

    text: str
    removed: tuple[Removed, ...] = ()
    """Removed directives, which `CLOSED_HEADER` numbers from 0."""


class ClosedError(Exception):
    """A directive must not be run, and the enclosing block must be closed."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        """Index of the directive in the list of removed directives."""


class Removals:
    """Collects the directives that are not run, without duplicates."""

    def __init__(self) -> None:
        self._numbers: dict[Statement, int] = {}
        self._items: list[Removed] = []

    @property
    def items(self) -> tuple[Removed, ...]:
        """Return the directives that are not run."""
        return tuple(self._items)

    def leave_out(self, item: Statement, reason: str, name: str = "") -> None:
        """Record a directive that does not affect responses. `name` replaces its own name."""
        self._add(item, reason, name, closes=False)

    def close(self, item: Statement, reason: str, word: str = "") -> ClosedError:
        """Record a directive that causes the enclosing block to be closed, and return the exception to raise.

        `word` is the part that must not be run.
        """
        return ClosedError(self._add(item, reason, word=_shortened(word), closes=True))

    def _add(self, item: Statement, reason: str, name: str = "", word: str = "", *, closes: bool) -> int:
        if item not in self._numbers:
            self._numbers[item] = len(self._items)
            # A list item has no name, only a position.
            shown = name or item.name.removeprefix("-")
            self._items.append(Removed(item.position, shown, reason, closes, word))
        return self._numbers[item]


def _shortened(word: str) -> str:
    return word if len(word) <= _MAX_WORD else f"{word[:_MAX_WORD]}…"

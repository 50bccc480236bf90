"""The directives in a configuration, in the same form for every kind of proxy.

A `Statement` is an nginx directive, an HAProxy line, or a field in an Envoy configuration. It is compared by identity
rather than content, because the same words may occur several times, and each occurrence is accounted for separately.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lbctl.base.diagnostics import Position


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """A directive in the source."""

    position: Position
    """Position of the directive's first character."""
    tokens: tuple[str, ...]
    """Name and arguments, without quotes."""
    block: tuple[Statement, ...] = ()
    """Directives in its block."""
    is_block: bool = False
    """Whether the statement has a block, which may be empty."""
    unread: str = ""
    """The reason why an include was not read or was only partly read. Empty if it was read."""

    @property
    def name(self) -> str:
        """The first word."""
        return self.tokens[0] if self.tokens else ""

    @property
    def args(self) -> tuple[str, ...]:
        """The words after the first one."""
        return self.tokens[1:]

    @property
    def text(self) -> str:
        """The directive on a single line, without its block."""
        has_braces = self.is_block and self.name != "include"
        return " ".join(map(_quoted, self.tokens)) + (" { … }" if has_braces else "")

    def named(self, *names: str) -> Iterator[Statement]:
        """Yield the directives in the block that have one of the names."""
        return (item for item in self.block if item.name in names)

    def last(self, name: str) -> Statement | None:
        """Return the last directive in the block with that name."""
        return next((item for item in reversed(self.block) if item.name == name), None)


def walk(statements: Iterable[Statement]) -> Iterator[Statement]:
    """Yield the directives and the directives in their blocks, with each directive before its block."""
    for item in statements:
        yield item
        yield from walk(item.block)


def _quoted(word: str) -> str:
    if word in {"{", "}"}:
        return word
    return f'"{word}"' if not word or any(character in word for character in " \t\n;{}") else word

"""The directives of a configuration, in the same form for every kind of proxy.

A `Statement` is an nginx directive, a line of HAProxy, or a field of an Envoy configuration. Its identity matters, not
its content: the same words may stand in a configuration several times, and each one is accounted for by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lbctl.base.diagnostics import Position


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """One directive of the source."""

    position: Position
    """Where it begins."""
    tokens: tuple[str, ...]
    """Its name and its arguments, without quotes."""
    block: tuple[Statement, ...] = ()
    """The directives in its block."""
    is_block: bool = False
    """Whether it has a block, which may be empty."""
    unread: str = ""
    """Why an include was not read, at least in part; empty if it was."""

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
        """The directive as one line, without its block."""
        has_braces = self.is_block and self.name != "include"
        return " ".join(map(_quoted, self.tokens)) + (" { … }" if has_braces else "")

    def named(self, *names: str) -> Iterator[Statement]:
        """Yield the directives of the block that have one of the names."""
        return (item for item in self.block if item.name in names)

    def last(self, name: str) -> Statement | None:
        """Return the last directive of the block with that name."""
        return next((item for item in reversed(self.block) if item.name == name), None)


def walk(statements: Iterable[Statement]) -> Iterator[Statement]:
    """Yield the directives and those of their blocks, each before its block."""
    for item in statements:
        yield item
        yield from walk(item.block)


def _quoted(word: str) -> str:
    if word in {"{", "}"}:
        return word
    return f'"{word}"' if not word or any(character in word for character in " \t\n;{}") else word

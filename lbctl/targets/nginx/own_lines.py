"""Checks that own lines for nginx stay in their place: whole directives, and balanced braces.

The text is parsed as nginx does: quotes count only at the beginning of a word, `#` only between words, and a closing
brace only where a directive could begin. A fleet is rejected if its own lines would leave their place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.snapshot import View
from lbctl.targets.own_lines import Misplaced, refusal

_PIECE = re.compile(
    r"""(?P<space>[ \t\r\n]+)|(?P<comment>\#[^\n]*)|(?P<end>;)|(?P<open>\{)|(?P<close>\})
    |(?P<quoted>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|(?P<unclosed>["'])
    |(?P<word>(?:\\.|\$\{|[^\s;{\\])(?:\\.|\$\{|[^\s;{\\])*\\?)""",
    re.VERBOSE | re.DOTALL,
)
_LUA = "_by_lua_block"
_BALANCED = "one `}` for each `{`"


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a directive, and its position in the text."""

    text: str
    """Word without quotes."""
    start: int
    """Offset of its first character."""
    end: int
    """Offset after its last character."""


def statements(text: str) -> Iterator[list[Word]]:
    """Yield the words of each directive that ends in a semicolon."""
    directive: list[Word] = []
    for piece in _PIECE.finditer(text):
        if piece.lastgroup in ("quoted", "word"):
            bare = piece[0][1:-1] if piece.lastgroup == "quoted" else piece[0]
            directive.append(Word(bare, *piece.span()))
        elif piece.lastgroup in ("end", "open", "close"):
            if piece.lastgroup == "end":
                yield directive
            directive = []


@dataclass(frozen=True, slots=True)
class Directive:
    """One directive in own lines."""

    name: str
    line: int
    """Line number of its name, starting at 1."""


def directives(text: str) -> Iterator[Directive | Misplaced]:
    """Yield the directives, including those within blocks, and a `Misplaced` where the text leaves its place."""
    reader, line = _Reader(), 1
    for piece in _PIECE.finditer(text):
        directive = reader.take(piece.lastgroup or "", piece[0], line)
        if directive is not None:
            yield directive
        if isinstance(directive, Misplaced):
            return
        line += piece[0].count("\n")
    if reader.name:
        yield reader.unended()
    elif reader.depth:
        yield Misplaced(line, f"{reader.depth} `{{` without a matching `}}`", _BALANCED)


def lines_of(text: str, prefixes: tuple[str, ...]) -> set[int]:
    """Return the line numbers of directives whose name has one of the prefixes, except directives inside blocks."""
    found: set[int] = set()
    name, first, line, depth = "", 1, 1, 0
    for piece in _PIECE.finditer(text):
        kind = piece.lastgroup
        if kind in ("quoted", "word") and not name:
            name, first = piece[0], line
        elif kind in ("end", "open", "close"):
            if kind == "end" and not depth and name.startswith(prefixes):
                found.update(range(first, line + 1))
            depth += (kind == "open") - (kind == "close")
            name = ""
        line += piece[0].count("\n")
    return found


class _Reader:
    """State of the current directive, and the number of open blocks."""

    def __init__(self) -> None:
        self.name, self.line, self.depth = "", 1, 0

    def take(self, kind: str, text: str, line: int) -> Directive | Misplaced | None:
        """Process the next piece of the text. Return the result that this piece completes."""
        if kind in ("quoted", "word"):
            self.name, self.line = (self.name, self.line) if self.name else (text.strip("\"'"), line)
        elif kind == "unclosed":
            return Misplaced(line, "this quote is never closed")
        elif kind == "close":
            return self._close(line)
        elif kind in ("end", "open"):
            return self._end(kind, text, line)
        return None

    def unended(self) -> Misplaced:
        """Return the complaint about an unterminated directive."""
        return Misplaced(self.line, f"{self.name} does not end with `;`")

    def _close(self, line: int) -> Misplaced | None:
        if self.name:
            return self.unended()
        self.depth -= 1
        return (
            Misplaced(line, "this `}` closes a block that the file did not open", _BALANCED) if self.depth < 0 else None
        )

    def _end(self, kind: str, text: str, line: int) -> Directive | Misplaced:
        name, self.name = self.name, ""
        if not name:
            return Misplaced(line, f"there is no directive before this `{text}`")
        if kind == "open" and name.endswith(_LUA):
            hint = f"{name.removesuffix('_block')}_file with the path of a script"
            return Misplaced(self.line, f"lbctl does not read Lua, so it cannot see where {name} ends", hint)
        self.depth += kind == "open"
        return Directive(name, self.line)


def misplaced(text: str) -> Iterator[Misplaced]:
    """Yield the parts of the lines that would leave their place."""
    yield from (item for item in directives(text) if isinstance(item, Misplaced))


def refusals(view: View) -> Iterator[Diagnostic]:
    """Yield the errors that make lbctl reject a fleet with this proxy."""
    proxy = view.proxy
    for item in proxy.include:
        yield from (refusal(proxy, item, each) for each in misplaced(item.text))

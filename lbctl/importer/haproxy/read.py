"""Reads HAProxy configurations as statements, where a section is a block and each line in it is a directive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position
from lbctl.importer.haproxy.tokens import TokenError, split_line
from lbctl.importer.limits import read_text
from lbctl.importer.statement import Statement

SECTIONS = frozenset(
    {"global", "defaults", "frontend", "backend", "listen", "userlist", "peers", "resolvers", "mailers", "program",
     "cache", "http-errors", "ring", "log-forward", "fcgi-app", "crt-store", "traces", "acme", "log-profile"}
)  # fmt: skip
_NAMED = frozenset({"frontend", "backend", "listen"})
_MAX_WORDS = 256


def read(files: Sequence[str], diagnostics: Diagnostics) -> tuple[Statement, ...]:
    """Return the sections of the files in order. HAProxy reads several files as one configuration."""
    return tuple(section for file in files for section in _sections(file, diagnostics))


def _sections(file: str, diagnostics: Diagnostics) -> Iterator[Statement]:
    text = read_text(Path(file), file, diagnostics)
    head: Statement | None = None
    lines: list[Statement] = []
    for item in _lines(text or "", file, diagnostics):
        if item.name in SECTIONS:
            if head is not None:
                yield Statement(head.position, head.tokens, tuple(lines), True)
            head, lines = item, []
            if item.name in _NAMED and not item.args:
                _fail(diagnostics, item.position, f"`{item.name}` needs a name")
        elif head is None:
            _fail(diagnostics, item.position, f"`{item.name}` is outside any section")
        else:
            lines.append(item)
    if head is not None:
        yield Statement(head.position, head.tokens, tuple(lines), True)


def _lines(text: str, file: str, diagnostics: Diagnostics) -> Iterator[Statement]:
    for number, line in enumerate(text.split("\n"), 1):
        try:
            tokens = split_line(line)
        except TokenError as error:
            _fail(diagnostics, Position(file, number, error.column), str(error))
            continue
        if len(tokens) > _MAX_WORDS:
            _fail(diagnostics, Position(file, number, 1), f"a line can have at most {_MAX_WORDS} words")
        elif tokens:
            yield Statement(Position(file, number, tokens[0].column), tuple(item.text for item in tokens))


def _fail(diagnostics: Diagnostics, position: Position, message: str) -> None:
    diagnostics.add(Diagnostic("LB980", f"invalid HAProxy configuration: {message}", position))

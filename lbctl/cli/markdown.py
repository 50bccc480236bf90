"""Writes GitHub-flavoured Markdown, which GitLab also supports, for comments on merge requests.

A fleet may contain arbitrary text, so the author of a change could inject links, HTML, mentions or GitLab quick actions
into the comment. Therefore, all such text is written as a code span in a table cell, so that it is not interpreted and
never begins a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from lbctl.base.printable import plain

_MAX_ROWS = 12
"""Tables with more rows than this are collapsed."""
_MAX_TABLE_CHARACTERS = 15_000
"""Maximum size of a table, in characters. GitHub rejects comments longer than 65,536 characters."""


@dataclass(frozen=True, slots=True)
class MarkdownTable:
    """A table with a title. The cells of `rows` are Markdown, so text from a fleet must be escaped with `code`."""

    title: str
    """Heading above the table."""
    head: Sequence[str]
    """Column titles."""
    rows: Sequence[Sequence[str]]
    numeric: frozenset[str] = frozenset()
    """Right-aligned columns."""


def document(summary: str, tables: Iterable[MarkdownTable]) -> str:
    """Return the summary, followed by all tables that have rows. Long tables are collapsed."""
    blocks = [f"**lbctl diff:** {summary}"]
    for table in tables:
        if table.rows:
            blocks += _folded(table) if len(table.rows) > _MAX_ROWS else [f"**{table.title}**", *_blocks(table)]
    return "\n\n".join(blocks) + "\n"


def code(text: str) -> str:
    """Return the text as a code span for a table cell, with control characters escaped."""
    text = plain(text)
    if not text:
        return ""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    padding = " " if text[0] in "` " or text[-1] in "` " else ""
    # Markdown splits rows at vertical bars before it parses code spans, so bars must be escaped in code spans too.
    return f"{fence}{padding}{text}{padding}{fence}".replace("|", r"\|")


def _folded(table: MarkdownTable) -> Iterator[str]:
    yield f"<details>\n<summary>{table.title} ({len(table.rows)})</summary>"
    yield from _blocks(table)
    yield "</details>"


def _blocks(table: MarkdownTable) -> Iterator[str]:
    """Yield the table's lines, with as many rows as fit, followed by the number of omitted rows."""
    rule = ["---:" if column in table.numeric else "---" for column in table.head]
    lines = [_line(table.head), _line(rule)]
    room = _MAX_TABLE_CHARACTERS
    for row in table.rows:
        line = _line(row)
        if len(line) > room:
            break
        room -= len(line)
        lines.append(line)
    yield "\n".join(lines)
    missing = len(table.rows) + 2 - len(lines)
    if missing:
        yield f"… and {missing} more: `lbctl diff -o json` shows all."


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"

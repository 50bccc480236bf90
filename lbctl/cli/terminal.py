"""Formats tables and sentences for people so that they fit the terminal's width, in colour if supported.

In a pipe, each row is one line of any length, without colours, so that programs can parse it.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import click

_GAP = 2
"""Number of spaces between two columns."""
_PROSE = 24
"""Minimum width of the last column if it contains sentences. If less space is available, the sentence is printed below
its row."""
_NARROWEST = 8
_INDENT = 4


def width() -> int | None:
    """Return the width of the terminal in characters, or None if standard output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def has_colours() -> bool:
    """Return whether standard output is a terminal that supports colours, and `NO_COLOR` is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str | None) -> str:
    """Return the text in this colour if the terminal supports colours."""
    return click.style(text, fg=colour) if colour and has_colours() else text


def wrapped(text: str, indent: int = 0) -> str:
    """Wrap the text at the terminal's width, and indent all lines except the first."""
    columns = width()
    if columns is None or len(text) + indent <= columns:
        return text
    return ("\n" + " " * indent).join(_wrap(text, max(_PROSE, columns - indent)))


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]], colours: Mapping[str, str] | None = None) -> str:
    """Format the rows as text. Columns are as wide as their content, or narrower if the terminal requires it.

    `colours` maps a cell's text to its colour. If the last column is too narrow for its sentences, they are printed
    below their rows.
    """
    lines = list(map(tuple, rows))
    layout = _layout([max(len(line[index]) for line in (head, *lines)) for index in range(len(head))])
    first = (*head[:-1], "") if layout.below is not None else head
    return "\n".join(text for line in (first, *lines) for text in _lines(line, layout, colours or {}))


@dataclass(frozen=True, slots=True)
class _Layout:
    """The layout of a row's cells."""

    widths: tuple[int, ...]
    """Width of each column."""
    below: int | None
    """Width of the last column's text if it is printed below its row, or None otherwise."""


def _layout(widths: list[int]) -> _Layout:
    columns = width()
    others = sum(widths[:-1]) + _GAP * (len(widths) - 1)
    if columns is None or others + widths[-1] <= columns:
        return _Layout(tuple(widths), None)
    if widths[-1] <= _PROSE:
        return _Layout(_narrowed(widths, columns), None)
    if columns - others >= _PROSE:
        return _Layout((*widths[:-1], columns - others), None)
    return _Layout(_narrowed(widths[:-1], columns), max(_NARROWEST, columns - _INDENT))


def _narrowed(widths: Sequence[int], columns: int) -> tuple[int, ...]:
    """Narrow the widest column repeatedly until all columns fit, or until no column is wider than the minimum."""
    narrowed = list(widths)
    room = columns - _GAP * (len(widths) - 1)
    while sum(narrowed) > room and max(narrowed) > _NARROWEST:
        narrowed[narrowed.index(max(narrowed))] -= 1
    return tuple(narrowed)


def _lines(cells: Sequence[str], layout: _Layout, colours: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of one row."""
    columns = [_wrap(cell, size) for cell, size in zip(cells, layout.widths, strict=False)]
    painted = [colours.get(cell) for cell in cells]
    for parts in zip_longest(*columns, fillvalue=""):
        padded = (
            paint(part, colour) + " " * (size - len(part))
            for part, colour, size in zip(parts, painted, layout.widths, strict=False)
        )
        yield (" " * _GAP).join(padded).rstrip()
    if layout.below is not None and cells[-1] not in ("", "-"):
        yield from (" " * _INDENT + part for part in _wrap(cells[-1], layout.below))


def _wrap(text: str, size: int) -> list[str]:
    if len(text) <= size:
        return [text]
    return textwrap.wrap(text, size, break_on_hyphens=False) or [""]

"""The output of commands as tables, JSON and YAML."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from lbctl.api.codec import json_text
from lbctl.base.printable import plain
from lbctl.cli import terminal


def show(value: Any, form: str) -> None:
    """Print `value` (JSON types or schema types) to standard output as JSON or YAML."""
    click.echo(as_text(value, form))


def as_text(value: Any, form: str) -> str:
    """Format `value` (JSON types or schema types) as JSON or YAML."""
    text = json_text(value, indent=2)
    if form == "json":
        return text
    import yaml

    document: str = yaml.safe_dump(json.loads(text), sort_keys=False, allow_unicode=True, width=120)
    return document.rstrip("\n")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows to standard output. Columns are as wide as their content if the terminal is wide enough."""
    click.echo(table_text(head, rows))


def table_text(head: Sequence[str], rows: Iterable[Sequence[str]], colours: Mapping[str, str] | None = None) -> str:
    """Return the text that `table` prints. `colours` maps a cell's text to its colour on a terminal."""
    return terminal.format_table(head, [tuple(plain(cell) for cell in row) for row in rows], colours)


def age(seconds: float | None) -> str:
    """Format a duration in seconds as `3s`, `12m`, `5h` or `9d`, or `-` for None."""
    if seconds is None:
        return "-"
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"

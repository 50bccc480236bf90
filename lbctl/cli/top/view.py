"""The `lbctl top` screen, with the rows on one page and the effect of keys on them. It sends no requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lbctl.api import schema
from lbctl.base.printable import plain
from lbctl.cli.output import age
from lbctl.cli.status.tables import COLOURS
from lbctl.cli.top.rows import COLUMNS, Column, ReplicaRow, pool_line, sorted_rows

_POOL_LINES = 4
"""Maximum number of pools for which a line is shown above the table."""
_REASON = 24
"""Minimum width of the reason column. If less space is available, the column is hidden."""
_NAME = 13
"""Minimum width of a replica's name."""
_WIDTHS = {
    "REPLICA": None, "STATE": 8, "DECIDED": 7, "OBSERVED": 8, "REQ/S": 6, "ERR": 4, "P50": 6, "P99": 6, "INFL": 5,
    "QUEUE": 5, "KV": 4, "GPU": 4, "°C": 4, "WEIGHT": 6,
}  # fmt: skip
"""Maps each column to its width, or to None if it uses the remaining width."""
_FIRST_TO_GO = ("WEIGHT", "P50", "°C", "P99", "KV")
"""Columns hidden on a narrow screen, in this order."""
_HELP = "q quit · ←→ or a letter: sort, again: reverse · p pool · space pause · ↑↓ page"


@dataclass(slots=True)
class ScreenView:
    """The state of the screen."""

    rows: tuple[ReplicaRow, ...] = ()
    """The newest rows to display."""
    pools: tuple[schema.Pool, ...] = ()
    problem: str = ""
    """The reason why the rows are outdated, or an empty string while they are current."""
    seconds: float = 0.0
    """Age of the rows, in seconds."""
    paused: bool = False
    """Whether the rows are frozen."""
    pool: str | None = None
    """Name of the only pool displayed, or None for all pools."""
    sort: int = 0
    """Index of the sort column."""
    reverse: bool = False
    """Whether the order is reversed."""
    page: int = 0
    """Index of the displayed page."""

    def show(self, pools: tuple[schema.Pool, ...], rows: tuple[ReplicaRow, ...], problem: str, seconds: float) -> None:
        """Show these rows, which are `seconds` old, unless the screen is paused."""
        if not self.paused:
            self.pools, self.rows = pools, rows
        self.problem, self.seconds = problem, seconds

    def press(self, key: str) -> None:
        """Update the display in response to a key. Unknown keys have no effect."""
        letters = {column.key: index for index, column in enumerate(COLUMNS)}
        if key in letters:
            self._sort_by(letters[key])
        elif key in ("left", "right"):
            self._sort_by((self.sort + (1 if key == "right" else -1)) % len(COLUMNS))
        elif key in ("down", "page down"):
            self.page += 1
        elif key in ("up", "page up"):
            self.page = max(0, self.page - 1)
        elif key == "p":
            self._next_pool()
        elif key == " ":
            self.paused = not self.paused

    def _sort_by(self, index: int) -> None:
        self.reverse = not self.reverse if index == self.sort else COLUMNS[index].is_number
        self.sort, self.page = index, 0

    def _next_pool(self) -> None:
        choices: list[str | None] = [None, *(pool.name for pool in self.pools)]
        current = choices.index(self.pool) if self.pool in choices else 0
        self.pool, self.page = choices[(current + 1) % len(choices)], 0

    def draw(self, width: int, height: int) -> RenderableType:
        """Render the screen at this size."""
        rows = [row for row in self.rows if self.pool in (None, row.pool)]
        head = [*self._pool_lines(rows)]
        room = max(1, height - len(head) - 3)
        pages = max(1, -(-len(rows) // room))
        self.page = min(self.page, pages - 1)
        ordered = sorted_rows(rows, COLUMNS[self.sort], reverse=self.reverse)
        shown = ordered[self.page * room : (self.page + 1) * room]
        lines = [Text(self._title(len(rows), pages), "bold", no_wrap=True, overflow="ellipsis"), *head]
        footer = Text(_HELP, "dim", no_wrap=True, overflow="ellipsis")
        return Group(*lines, self._table(shown, width), footer)

    def _title(self, count: int, pages: int) -> str:
        what = f"pool {self.pool}" if self.pool else f"{len(self.pools)} pools"
        page = f" · page {self.page + 1} of {pages}" if pages > 1 else ""
        state = " · paused" if self.paused else ""
        problem = f" · {self.problem}: data is {age(self.seconds)} old" if self.problem else ""
        return plain(f"{what}, {count} replicas{page}{state}{problem}")

    def _pool_lines(self, rows: list[ReplicaRow]) -> Iterator[Text]:
        pools = [pool for pool in self.pools if self.pool in (None, pool.name)]
        for pool in pools[:_POOL_LINES]:
            line = plain(pool_line(pool, [row for row in rows if row.pool == pool.name]))
            yield Text(line, no_wrap=True, overflow="ellipsis")
        if len(pools) > _POOL_LINES:
            yield Text(f"and {len(pools) - _POOL_LINES} more pools", "dim")

    def _table(self, rows: list[ReplicaRow], width: int) -> Table:
        columns = _columns(width)
        fixed = _width(columns)
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, expand=True, header_style="reverse")
        for column in columns:
            head = Text(column.head, "bold reverse" if column is COLUMNS[self.sort] else "")
            justify, size = "right" if column.is_number else "left", _WIDTHS[column.head]
            table.add_column(head, justify=justify, no_wrap=True, width=size, ratio=None if size else 1)  # type: ignore[arg-type]
        has_reasons = width - fixed >= _REASON + _NAME
        if has_reasons:
            table.add_column("REASON", no_wrap=True, ratio=1, overflow="ellipsis")
        for row in rows:
            cells = [Text(plain(column.text(row)), COLOURS.get(column.text(row), "")) for column in columns]
            table.add_row(*cells, *([plain(row.replica.state_reason)] if has_reasons else []))
        return table


def _columns(width: int) -> list[Column]:
    """Return the columns that fit on a screen of this width."""
    columns = list(COLUMNS)
    for head in _FIRST_TO_GO:
        if _width(columns) > width:
            columns = [column for column in columns if column.head != head]
    return columns


def _width(columns: list[Column]) -> int:
    return sum(_WIDTHS[column.head] or _NAME for column in columns) + len(columns)

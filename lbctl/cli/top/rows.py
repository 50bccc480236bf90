"""The rows of `lbctl top`, one per replica, with its state, its shares, and its engine's activity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lbctl.api import schema
from lbctl.cli.status.tables import seconds, share

Value = str | float | None


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """A replica with its signals."""

    pool: str
    replica: schema.Replica
    """The row in `/api/v1/pools`."""
    signals: Mapping[str, float]
    """Maps each signal to its value. Stale and missing signals are omitted."""

    @property
    def name(self) -> str:
        """Name in the format that `lbctl drain` accepts."""
        return f"{self.pool}/{self.replica.name}"


@dataclass(frozen=True, slots=True)
class Column:
    """A table column by which rows can be sorted."""

    head: str
    key: str
    """Letter that sorts the table by this column."""
    value: Callable[[ReplicaRow], Value]
    """Returns the sort key, or None if it is unknown."""
    text: Callable[[ReplicaRow], str]
    """Returns the text to display."""
    is_number: bool = True
    """Whether the column is right-aligned and sorted in descending order."""


def _text_column(head: str, key: str, value: Callable[[ReplicaRow], str]) -> Column:
    return Column(head, key, value, value, is_number=False)


def _number_column(
    head: str, key: str, value: Callable[[ReplicaRow], float | None], form: Callable[[float], str]
) -> Column:
    def text(row: ReplicaRow) -> str:
        number = value(row)
        return "-" if number is None else form(number)

    return Column(head, key, value, text)


def _share(number: float) -> str:
    return share(number)


def _percent(number: float) -> str:
    return f"{number * 100:.0f}%"


def _whole(number: float) -> str:
    return f"{number:.0f}"


COLUMNS: tuple[Column, ...] = (
    _text_column("REPLICA", "n", lambda row: row.name),
    _text_column("STATE", "s", lambda row: row.replica.state),
    _number_column("DECIDED", "d", lambda row: row.replica.share, _share),
    _number_column("OBSERVED", "o", lambda row: row.replica.observed, _share),
    _number_column("REQ/S", "r", lambda row: row.replica.requests_per_second, "{:.3g}".format),
    _number_column("ERR", "e", lambda row: row.replica.errors, _percent),
    _number_column("P50", "5", lambda row: row.replica.first_byte_p50, seconds),
    _number_column("P99", "9", lambda row: row.replica.first_byte_p99, seconds),
    _number_column("INFL", "i", lambda row: row.replica.in_flight, _whole),
    _number_column("QUEUE", "u", lambda row: row.signals.get("queue"), _whole),
    _number_column("KV", "k", lambda row: row.signals.get("kv_cache"), _percent),
    _number_column("GPU", "g", lambda row: row.signals.get("gpu"), _percent),
    _number_column("°C", "t", lambda row: row.signals.get("temperature"), _whole),
    _number_column("WEIGHT", "w", lambda row: row.replica.weight, "{:.3g}".format),
)
"""The columns, from left to right."""


def rows_of(pools: Iterable[schema.Pool], signals: Iterable[schema.ReplicaSignals]) -> tuple[ReplicaRow, ...]:
    """Return a row for each replica, in the fleet's order."""
    fresh = {
        (item.pool, item.replica): {name: signal.value for name, signal in item.signals.items() if signal.fresh}
        for item in signals
    }
    return tuple(
        ReplicaRow(pool.name, replica, fresh.get((pool.name, replica.name), {}))
        for pool in pools
        for replica in pool.replicas
    )


def sorted_rows(rows: Iterable[ReplicaRow], column: Column, *, reverse: bool) -> list[ReplicaRow]:
    """Return the rows sorted by a column.

    Rows with unknown values come last, and rows with equal values are sorted by name.
    """
    by_name = sorted(rows, key=lambda row: row.name)
    with_value = [row for row in by_name if column.value(row) is not None]
    with_value.sort(key=column.value, reverse=reverse)  # type: ignore[arg-type]  # a column has values of one type
    return with_value + [row for row in by_name if column.value(row) is None]


def pool_line(pool: schema.Pool, rows: Sequence[ReplicaRow]) -> str:
    """Return one line about a pool: its replicas by state, its requests and errors, and its queues."""
    states = Counter(row.replica.state for row in rows)
    counts = ", ".join(f"{count} {state}" for state, count in states.most_common())
    count = "1 replica" if len(rows) == 1 else f"{len(rows)} replicas"
    parts = [f"{count}: {counts}" if rows else "no replicas"]
    for label, key in (("req/s", "r"), ("in flight", "i"), ("queue", "u")):
        column = next(item for item in COLUMNS if item.key == key)
        values = [value for row in rows if isinstance(value := column.value(row), int | float)]
        if values:
            parts.append(f"{sum(values):.4g} {label}")
    if pool.queue is not None:
        parts.append(f"{pool.queue.waiting} waiting at the picker")
        if refused := pool.queue.refused_full + pool.queue.refused_late:
            parts.append(f"{refused} rejected")
    if pool.errors is not None:
        parts.append(f"{_percent(pool.errors)} errors")
    if pool.first_byte_p50 is not None:
        parts.append(f"first byte p50 {seconds(pool.first_byte_p50)}, p99 {seconds(pool.first_byte_p99)}")
    if pool.picks is not None and pool.picks.share is not None:
        parts.append(f"{_percent(pool.picks.share)} picked")
    return f"{pool.name}  {' · '.join(parts)}"

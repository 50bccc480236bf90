"""Reads traces of requests: Azure's CSV, Mooncake's JSONL, and lbctl's CSV. The position of each error is reported.

| format | columns |
|---|---|
| Azure | `TIMESTAMP` (date and time), `ContextTokens`, `GeneratedTokens` |
| Mooncake | `timestamp` (ms), `input_length`, `output_length`, `hash_ids` (ids of prefix blocks of 512 tokens) |
| lbctl | `time` (s, or ms of the epoch), `prompt`, `answer` (tokens) |

A CSV may also contain `session`, and for queues at the picker `tenant` and `priority` (`high`, `normal` or `low`).
"""

from __future__ import annotations

import csv
import json
import stat
import sys
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain, takewhile
from pathlib import Path
from typing import BinaryIO

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position
from lbctl.base.errors import reason_of
from lbctl.pick.waiting import PRIORITIES

MOONCAKE_BLOCK = 512
"""Tokens per prefix block."""
_MAX_FILE_BYTES = 1 << 30
_MAX_ERRORS = 20
_MAX_TOKENS = 10_000_000
_MAX_TIME = 1e13
"""Maximum time that is accepted. Current epoch times are 1.8e9 seconds or 1.8e12 milliseconds."""
_EPOCH_SECONDS = 1e9
"""Minimum epoch time in seconds: the year 2001."""
_EPOCH_MILLISECONDS = 1e11
"""Minimum epoch time in milliseconds, and maximum in seconds: the years 1973 and 5138."""
_MAX_SECONDS = 1e9
"""Maximum duration of a trace, in seconds."""
_BOM = b"\xef\xbb\xbf"
_MAX_LINE = 1 << 20
_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests, in order of arrival."""

    times: Sequence[float]
    """Seconds after the first request."""
    prompts: Sequence[int]
    """Length of each prompt, in tokens; at least 1."""
    answers: Sequence[int]
    """Length of each response, in tokens; at least 1."""
    keys: Sequence[int] = ()
    """32-bit number for each session, or each beginning of a prompt; empty if the trace has neither."""
    blocks: Sequence[tuple[int, ...]] = ()
    """IDs of each prompt's prefix blocks; empty if the trace has none."""
    block: int = 0
    """Tokens per prefix block; 0 if there are none."""
    repeated: int = 0
    """Number of prompt tokens, over all requests, that a single unlimited cache would contain."""
    tenants: Sequence[str] = ()
    """Tenant of each request; empty if the trace has none."""
    priorities: Sequence[int] = ()
    """Priority of each request, an index in `PRIORITIES`; empty if the trace has none."""

    @property
    def rate(self) -> float:
        """Mean requests per second."""
        return (len(self.times) - 1) / self.times[-1] if len(self.times) > 1 and self.times[-1] > 0 else 0.0

    def faster(self, factor: float) -> Trace:
        """Return the same requests at `factor` times the rate."""
        return replace(self, times=array("d", (time / factor for time in self.times)))

    def first(self, count: int) -> Trace:
        """Return the first `count` requests."""
        prompts, blocks = self.prompts[:count], self.blocks[:count]
        return Trace(
            self.times[:count], prompts, self.answers[:count], self.keys[:count], blocks, self.block,
            _repeated(prompts, blocks, self.block), self.tenants[:count], self.priorities[:count],
        )  # fmt: skip


@dataclass(slots=True)
class _Rows:
    times: array[float] = field(default_factory=lambda: array("d"))
    prompts: array[int] = field(default_factory=lambda: array("i"))
    answers: array[int] = field(default_factory=lambda: array("i"))
    keys: array[int] = field(default_factory=lambda: array("I"))
    blocks: list[tuple[int, ...]] = field(default_factory=list)
    tenants: list[str] = field(default_factory=list)
    priorities: array[int] = field(default_factory=lambda: array("b"))
    units: float = 1.0
    """Number of the file's time units in a second."""
    has_gap: bool = False
    """Whether a gap of more than a day was reported."""

    def in_order(self, time: float) -> float:
        """Return the next row's time, in seconds.

        Raises _CellError if the time is earlier than the previous row's, or far later than the first row's.
        """
        at = time / self.units
        if self.times and at < self.times[-1]:
            raise _CellError(f"it arrives {self.times[-1] - at:g} s before the row above it", "sort the trace by time")
        if self.times and at - self.times[0] > _MAX_SECONDS:
            raise _CellError(
                f"it arrives {at - self.times[0]:g} s after the first row; lbctl replays at most {_MAX_SECONDS:g} s"
            )
        return at


class _CellError(ValueError):
    """A cell's value cannot be used."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class _RowError(ValueError):
    """A row cannot be used. `column` is a character's column, starting at 1. 0 means the whole row."""

    def __init__(self, message: str, column: int = 0, hint: str = "") -> None:
        super().__init__(message)
        self.column = column
        self.hint = hint


def read(name: str, diagnostics: Diagnostics) -> Trace | None:
    """Return the trace from a file; None if it has errors (LB030). At most 20 errors are reported."""
    if "://" in name:
        diagnostics.add(_error(name, 0, "a trace must be a file, not a URL", hint="download it first"))
        return None
    try:
        status = Path(name).stat()
        if not stat.S_ISREG(status.st_mode):
            diagnostics.add(_error(name, 0, "it is not a regular file"))
            return None
        if status.st_size > _MAX_FILE_BYTES:
            size = f"it has {status.st_size / 1e9:.1f} GB, but lbctl reads at most {_MAX_FILE_BYTES / 1e9:.1f} GB"
            diagnostics.add(_error(name, 0, size, hint="use a part of it: head -n 1000000"))
            return None
        with Path(name).open("rb") as file:
            return _parse(name, file, diagnostics)
    except OSError as error:
        diagnostics.add(_error(name, 0, f"it cannot be read: {reason_of(error)}"))
    return None


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines. A line of more than 1 MiB is split into pieces, none of which is a valid row."""
    while line := file.readline(_MAX_LINE):
        yield line


def _parse(name: str, file: BinaryIO, diagnostics: Diagnostics) -> Trace | None:
    lines = enumerate(_lines(file), 1)
    _, first = next(lines, (1, b""))
    first = first.removeprefix(_BOM)
    json_lines = first.lstrip().startswith(b"{")
    reader = _json_row if json_lines else _csv_reader(name, first, diagnostics)
    if reader is None:
        return None
    rows, errors = _Rows(), 0
    for number, line in chain([(1, first)] if json_lines else [], lines):
        if line.strip():
            errors += _take(name, number, line, reader, rows, diagnostics)
        if errors >= _MAX_ERRORS:
            diagnostics.add(_error(name, number, f"{_MAX_ERRORS} rows have errors; lbctl did not read the rest"))
            return None
    if not errors and not rows.times:
        diagnostics.add(_error(name, 0, "it has no requests"))
    return None if errors or not rows.times else _trace(rows, MOONCAKE_BLOCK if rows.blocks else 0)


def _trace(rows: _Rows, block: int) -> Trace:
    start = rows.times[0]
    times = array("d", (time - start for time in rows.times))
    repeated = _repeated(rows.prompts, rows.blocks, block)
    return Trace(
        times, rows.prompts, rows.answers, rows.keys, rows.blocks, block, repeated, rows.tenants, rows.priorities
    )


def _repeated(prompts: Sequence[int], blocks: Sequence[tuple[int, ...]], block: int) -> int:
    """Return `Trace.repeated`."""
    before: set[int] = set()
    tokens = 0
    for prompt, own in zip(prompts, blocks, strict=False):
        tokens += min(prompt - 1, block * sum(1 for _ in takewhile(before.__contains__, own)))
        before.update(own)
    return tokens


_Reader = Callable[[str, _Rows], None]


def _take(name: str, number: int, line: bytes, reader: _Reader, rows: _Rows, diagnostics: Diagnostics) -> int:
    """Append one row. Return 1 if the row has an error, otherwise 0."""
    try:
        reader(_text(line), rows)
    except _RowError as error:
        diagnostics.add(_error(name, number, str(error), error.column, error.hint))
        return 1
    if len(rows.times) == 1:
        diagnostics.extend(_doubtful_unit(name, number, rows, is_json=reader is _json_row))
    if len(rows.times) > 1 and rows.times[-1] - rows.times[-2] > _DAY and not rows.has_gap:
        rows.has_gap = True
        diagnostics.add(_gap(name, number, (rows.times[-1] - rows.times[-2]) / _DAY))
    return 0


def _doubtful_unit(name: str, number: int, rows: _Rows, *, is_json: bool) -> Iterator[Diagnostic]:
    """Report a first time that does not have, or does not seem to have, the format's unit."""
    first = rows.times[0] * rows.units
    if is_json and _EPOCH_SECONDS <= first < _EPOCH_MILLISECONDS:
        message = (
            f"{first:.10g} looks like seconds since the epoch, but is read as milliseconds, like all times in JSON "
            "lines"
        )
        hint = "multiply the times by 1000 if they are seconds"
    elif not is_json and rows.units > 1:
        message = (
            f"{first:.13g} can only be milliseconds since the epoch, so all times in this file are read as milliseconds"
        )
        hint = "times in a CSV file should be seconds: divide them by 1000 to avoid this warning"
    else:
        return
    yield Diagnostic("LB033", message, Position(name, number, 1), (), hint, "warning")


def _gap(name: str, number: int, days: float) -> Diagnostic:
    hint = "times are seconds in CSV (or milliseconds since the epoch) and milliseconds in JSON lines"
    return Diagnostic(
        "LB031", f"no request for {days:.4g} days before this one", Position(name, number, 1), (), hint, "warning"
    )


def _text(line: bytes) -> str:
    if len(line) >= _MAX_LINE:
        raise _RowError(f"the line has {_MAX_LINE} or more characters")
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise _RowError("it is not UTF-8 text", len(line[: error.start].decode()) + 1) from None


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error as error:
        raise _RowError(f"it is not CSV: {error}") from None


def _csv_reader(name: str, header: bytes, diagnostics: Diagnostics) -> _Reader | None:
    try:
        columns = [column.strip() for column in _cells(_text(header))]
    except _RowError as error:
        diagnostics.add(_error(name, 1, str(error), error.column, error.hint))
        return None
    for wanted, time in (
        (("TIMESTAMP", "ContextTokens", "GeneratedTokens"), _date),
        (("time", "prompt", "answer"), _seconds),
    ):
        if wanted[0] in columns:
            missing = [column for column in wanted if column not in columns]
            if missing:
                diagnostics.add(_error(name, 1, f"the column {', '.join(missing)} is missing", 1))
                return None
            keys = "session", "tenant", "priority"
            optional: dict[str, int] = {key: columns.index(key) for key in keys if key in columns}
            return _csv_row([columns.index(column) for column in wanted], time, optional)
    shown = ", ".join(columns[:6])[:80] or "nothing"
    hint = (
        "use the columns time,prompt,answer, or TIMESTAMP,ContextTokens,GeneratedTokens, or JSON lines with timestamp"
    )
    diagnostics.add(_error(name, 1, f"the first line does not name known columns: {shown}", 1, hint))
    return None


def _csv_row(places: list[int], time: Callable[[object], float], optional: Mapping[str, int]) -> _Reader:
    time_place, prompt_place, answer_place = places
    session, tenant, priority = (optional.get(key) for key in ("session", "tenant", "priority"))
    short = max(*places, *optional.values())

    def reader(line: str, rows: _Rows) -> None:
        cells = _cells(line)
        if len(cells) <= short:
            raise _RowError(f"it has {len(cells)} columns, not {short + 1}")
        place = time_place
        try:
            when = time(cells[place])
            if not rows.times:
                rows.units = 1000.0 if time is _seconds and when >= _EPOCH_MILLISECONDS else 1.0
            at = rows.in_order(when)
            prompt = _tokens(cells[place := prompt_place])
            answer = _tokens(cells[place := answer_place])
            if priority is not None:
                rows.priorities.append(_priority(cells[place := priority]))
        except _CellError as error:
            raise _RowError(str(error), _column_of(line, place), error.hint) from None
        rows.times.append(at)
        rows.prompts.append(prompt)
        rows.answers.append(answer)
        if tenant is not None:
            rows.tenants.append(sys.intern(cells[tenant].strip()))
        if session is not None:
            rows.keys.append(zlib.crc32(cells[session].encode()))

    return reader


def _column_of(line: str, place: int) -> int:
    """Return the column, starting at 1, at which a cell begins."""
    is_quoted = False
    for column, character in enumerate(line, 1):
        if place == 0:
            return column
        is_quoted ^= character == '"'
        place -= character == "," and not is_quoted
    return len(line) + 1


def _json_row(line: str, rows: _Rows) -> None:
    row = _json_object(line)
    missing = [key for key in ("timestamp", "input_length", "output_length") if key not in row]
    if missing:
        raise _RowError(f"it has no {', '.join(missing)}")
    key = "timestamp"
    try:
        rows.units = 1000.0
        at = rows.in_order(_seconds(row[key]))
        prompt = _tokens(row[key := "input_length"])
        answer = _tokens(row[key := "output_length"])
        blocks = _blocks(row.get(key := "hash_ids"))
    except _CellError as error:
        raise _RowError(str(error), line.find(f'"{key}"') + 1, error.hint) from None
    if bool(blocks) != bool(rows.blocks) and rows.times:
        raise _RowError("some rows have hash_ids, but others do not")
    rows.times.append(at)
    rows.prompts.append(prompt)
    rows.answers.append(answer)
    if blocks:
        rows.blocks.append(blocks)
        rows.keys.append(zlib.crc32(str(blocks[:2]).encode()))


def _json_object(line: str) -> dict[str, object]:
    try:
        row = json.loads(line)
    except RecursionError:
        raise _RowError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise _RowError(f"it is not JSON: {error.msg}", error.colno) from None
    except ValueError as error:  # a number with too many digits
        raise _RowError(f"it is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise _RowError("it is not a JSON object")
    return row


def _blocks(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(type(item) is int and 0 <= item < 1 << 62 for item in value):
        raise _CellError("hash_ids is not a list of numbers")
    return tuple(value)


def _date(value: object) -> float:
    text = str(value)
    try:
        at = datetime.fromisoformat(text.strip())
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        raise _CellError(
            f"{text[:40]!r} is not a date and time", "use a format such as 2023-11-16 18:15:46.68"
        ) from None


def _seconds(value: object) -> float:
    try:
        number = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else -1.0
    except (ValueError, OverflowError):
        number = -1.0
    if number > _MAX_TIME:
        hint = "use milliseconds since the epoch, for example 1700000000500, and divide times in a finer unit"
        raise _CellError(f"{str(value)[:40]!r} is later than the latest supported time, {_MAX_TIME:,.0f}", hint)
    if not number >= 0:  # also false for NaN
        raise _CellError(f"{str(value)[:40]!r} is not a non-negative time")
    return number


def _priority(value: str) -> int:
    """Return the index of a priority in `PRIORITIES`. An empty cell is `normal`."""
    name = value.strip().lower() or "normal"
    if name not in PRIORITIES:
        hint = f"use {', '.join(PRIORITIES)}, or leave the cell empty"
        raise _CellError(f"{value[:40]!r} is not a priority", hint)
    return PRIORITIES.index(name)


def _tokens(value: object) -> int:
    try:
        number = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else -1.0
    except (ValueError, OverflowError):
        number = -1.0
    if not 0 <= number <= _MAX_TOKENS or number != int(number):
        raise _CellError(f"{str(value)[:40]!r} is not a number of tokens")
    return max(1, int(number))


def _error(name: str, line: int, message: str, column: int = 0, hint: str = "") -> Diagnostic:
    position = Position(name, line, max(1, column)) if line else Position(name)
    return Diagnostic("LB030", message, position, hint=hint)

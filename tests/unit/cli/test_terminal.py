"""Tables wrap at words within the width of a terminal, and have one line for each row in a pipe."""

from __future__ import annotations

import pytest

from lbctl.cli import terminal

HEAD = ("NODE", "STATE", "LACKS")
LONG = "its next reload is due; for weights there is one every 30 s at most"
ROWS = [("edge-1", "SYNCED", ""), ("nginx", "WAITING", LONG)]


def set_width(monkeypatch: pytest.MonkeyPatch, columns: int | None) -> None:
    monkeypatch.setattr(terminal, "width", lambda: columns)


def test_row_in_a_pipe_is_one_line_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    set_width(monkeypatch, None)
    lines = terminal.format_table(HEAD, ROWS).splitlines()
    assert lines == ["NODE    STATE    LACKS", "edge-1  SYNCED", f"nginx   WAITING  {LONG}"]


def test_last_column_takes_the_remaining_width_and_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    set_width(monkeypatch, 60)
    lines = terminal.format_table(HEAD, ROWS).splitlines()
    assert lines[2:] == [
        "nginx   WAITING  its next reload is due; for weights there",
        "                 is one every 30 s at most",
    ]


def test_sentence_without_room_is_printed_below_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    set_width(monkeypatch, 36)
    lines = terminal.format_table(HEAD, ROWS).splitlines()
    assert lines == [
        "NODE    STATE",
        "edge-1  SYNCED",
        "nginx   WAITING",
        "    its next reload is due; for",
        "    weights there is one every 30 s",
        "    at most",
    ]


def test_widest_columns_are_narrowed_without_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    set_width(monkeypatch, 24)
    text = terminal.format_table(("POOL", "REPLICA"), [("chat", "a-replica-with-a-long-name")])
    assert all(len(line) <= 24 for line in text.splitlines())
    assert text.replace("\n", "").replace(" ", "").endswith("chata-replica-with-a-long-name")


def test_cells_have_colours_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, colours = [("edge-1", "SYNCED", "")], {"SYNCED": "green"}
    assert "\x1b" not in terminal.format_table(HEAD, rows, colours)
    monkeypatch.setattr(terminal, "has_colours", lambda: True)
    assert "\x1b[32mSYNCED\x1b[0m" in terminal.format_table(HEAD, rows, colours)

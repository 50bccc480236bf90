"""Tables on a terminal: whole words within its width, and one line a row in a pipe."""

from __future__ import annotations

import pytest

from lbctl.cli import terminal

HEAD = ("NODE", "STATE", "LACKS")
LONG = "its next reload is due; for weights there is one every 30 s at most"
ROWS = [("edge-1", "SYNCED", ""), ("nginx", "WAITING", LONG)]


def _on(monkeypatch: pytest.MonkeyPatch, columns: int | None) -> None:
    monkeypatch.setattr(terminal, "width", lambda: columns)


def test_in_a_pipe_a_row_is_a_line_however_long(monkeypatch: pytest.MonkeyPatch) -> None:
    _on(monkeypatch, None)
    lines = terminal.format_table(HEAD, ROWS).splitlines()
    assert lines == ["NODE    STATE    LACKS", "edge-1  SYNCED", f"nginx   WAITING  {LONG}"]


def test_the_last_column_takes_the_room_that_is_left_and_wraps_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    _on(monkeypatch, 60)
    lines = terminal.format_table(HEAD, ROWS).splitlines()
    assert lines[2:] == [
        "nginx   WAITING  its next reload is due; for weights there",
        "                 is one every 30 s at most",
    ]


def test_a_sentence_without_room_is_printed_below_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    _on(monkeypatch, 36)
    lines = terminal.format_table(HEAD, ROWS).splitlines()
    assert lines == [
        "NODE    STATE",
        "edge-1  SYNCED",
        "nginx   WAITING",
        "    its next reload is due; for",
        "    weights there is one every 30 s",
        "    at most",
    ]


def test_without_sentences_the_widest_columns_are_narrowed(monkeypatch: pytest.MonkeyPatch) -> None:
    _on(monkeypatch, 24)
    text = terminal.format_table(("POOL", "REPLICA"), [("chat", "a-replica-with-a-long-name")])
    assert all(len(line) <= 24 for line in text.splitlines())
    assert text.replace("\n", "").replace(" ", "").endswith("chata-replica-with-a-long-name")


def test_cells_have_colours_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, colours = [("edge-1", "SYNCED", "")], {"SYNCED": "green"}
    assert "\x1b" not in terminal.format_table(HEAD, rows, colours)
    monkeypatch.setattr(terminal, "has_colours", lambda: True)
    assert "\x1b[32mSYNCED\x1b[0m" in terminal.format_table(HEAD, rows, colours)

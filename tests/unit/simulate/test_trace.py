"""Traces are read strictly: an error is reported with its line, and the whole file is rejected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lbctl.base.diagnostics import Diagnostics
from lbctl.simulate.trace import Trace, read


def trace_and_messages(path: Path | str) -> tuple[Trace | None, list[str]]:
    diagnostics = Diagnostics()
    trace = read(str(path), diagnostics)
    return trace, [f"{item.position.line}: {item.message}" if item.position else item.message for item in diagnostics]


def error_messages(tmp_path: Path, content: str | bytes) -> str:
    file = tmp_path / "trace"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    trace, messages = trace_and_messages(file)
    assert trace is None
    assert messages
    return "\n".join(messages)


def test_the_three_trace_formats_are_read(tmp_path: Path) -> None:
    file = tmp_path / "trace"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n"
        "2023-11-16 18:15:50.1805900,396,0"
    )
    trace, _ = trace_and_messages(file)
    assert trace is not None
    assert (list(trace.times), list(trace.prompts), list(trace.answers)) == ([0.0, 3.5], [374, 396], [44, 1])
    rows = [{"timestamp": at, "input_length": 600, "output_length": 5, "hash_ids": [0, at]} for at in (0, 1500)]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    trace, _ = trace_and_messages(file)
    assert trace is not None
    assert (list(trace.times), trace.blocks, trace.block) == ([0.0, 1.5], [(0, 0), (0, 1500)], 512)
    file.write_text("\ufeffanswer,time,prompt,session\n5,2,100,a\n6,3,100,b\n\n7,3,100,a\n")
    trace, _ = trace_and_messages(file)
    assert trace is not None
    assert (list(trace.times), list(trace.answers)) == ([0.0, 1.0, 1.0], [5, 6, 7])
    assert trace.keys[0] == trace.keys[2] != trace.keys[1]
    assert (trace.rate, list(trace.faster(2).times)) == (2.0, [0.0, 0.5, 0.5])


def test_tenants_and_priorities_are_read(tmp_path: Path) -> None:
    file = tmp_path / "trace"
    file.write_text("tenant,time,prompt,answer,priority\na,0,1,1,High\n b ,1,1,1,\na,2,1,1,low\n")
    trace, messages = trace_and_messages(file)
    assert trace is not None
    assert messages == []
    assert (list(trace.tenants), list(trace.priorities)) == (["a", "b", "a"], [0, 1, 2])
    part = trace.faster(2).first(2)
    assert (list(part.tenants), list(part.priorities)) == (["a", "b"], [0, 1])
    file.write_text("time,prompt,answer\n0,1,1\n")
    trace, _ = trace_and_messages(file)
    assert trace is not None
    assert (list(trace.tenants), list(trace.priorities)) == ([], [])


HEAD = "time,prompt,answer\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "1: the first line does not name known columns: nothing"),
        (HEAD, "it has no requests"),
        ("a,b\n1,2\n", "1: the first line does not name known columns: a, b"),
        ("time,prompt\n1,2\n", "1: the column answer is missing"),
        (HEAD + "0,1,1\n1,2\n", "3: it has 2 columns, not 3"),
        (HEAD + "0,1,1\n1,,2\n", "3: '' is not a number of tokens"),
        (HEAD + "0,1,1\n1,-5,2\n", "3: '-5' is not a number of tokens"),
        (HEAD + "-1,1,1\n", "2: '-1' is not a non-negative time"),
        (HEAD + "nan,1,1\n", "2: 'nan' is not a non-negative time"),
        (
            HEAD + "1700000000000000,1,1\n",
            "2: '1700000000000000' is later than the latest supported time, 10,000,000,000,000",
        ),
        (HEAD + "1700000000000,1,1\n1700000000.5,1,1\n", "3: it arrives 1.6983e+09 s before the row above it"),
        (HEAD + "0,1.5,1\n", "2: '1.5' is not a number of tokens"),
        (HEAD + "0,inf,1\n", "2: 'inf' is not a number of tokens"),
        (
            HEAD + "0,1,1\n1700000000,1,1\n",
            "3: it arrives 1.7e+09 s after the first row; lbctl replays at most 1e+09 s",
        ),
        (HEAD + "5,1,1\n3,1,1\n", "3: it arrives 2 s before the row above it"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", "2: 'yesterday' is not a date and time"),
        ('{"timestamp": 0}\n', "1: it has no input_length, output_length"),
        ('{"timestamp": 0,\n', "1: it is not JSON"),
        ("time,prompt,answer,priority\n0,1,1,urgent\n", "2: 'urgent' is not a priority"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 5}\n[1]\n', "2: it is not a JSON object"),
        ('{"timestamp": 0, "input_length": true, "output_length": 5}\n', "1: 'True' is not a number of tokens"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 5, "hash_ids": "x"}\n', "1: hash_ids is not a list"),
        ("{" + "[" * 100_000, "1: it is"),
        (b"\x7fELF\x02\x01\x01\x00\x00\xff\xfe", "1: it is not UTF-8 text"),
        ((HEAD + "0,1,1\n1,\u00e9,").encode("latin-1"), "3: it is not UTF-8 text"),
        (b"\x00" * 3_000_000, "1: the line is"),
        (HEAD + "0,1," + "1" * 200_000 + "\n", "2: it is not CSV"),
    ],
)
def test_an_error_has_its_line(tmp_path: Path, content: str | bytes, expected: str) -> None:
    assert expected in error_messages(tmp_path, content)


def places(path: Path, content: str) -> list[str]:
    path.write_text(content)
    diagnostics = Diagnostics()
    assert read(str(path), diagnostics) is None
    return [f"{item.position.line}:{item.position.column}" for item in diagnostics if item.position]


def test_an_error_has_the_column_of_its_first_character(tmp_path: Path) -> None:
    assert places(tmp_path / "trace", "prompt,answer,time\n10,12x,0\n10,1,5\n1000,100,3\n") == ["2:4", "4:10"]
    assert places(tmp_path / "trace", 'session,time,prompt,answer\n"a, ""b""",0,é,1\n') == ["2:14"]
    assert places(tmp_path / "trace", AZURE + "2023-11-16 18:15:46.6805900,374,x\n") == ["2:33"]
    row = '{"timestamp": 0, "input_length": "x", "output_length": 5}\n'
    assert places(tmp_path / "trace", row + row.replace('"x"', "5,")) == ["1:18", "2:36"]
    (tmp_path / "latin").write_bytes(HEAD.encode() + "é".encode() + "é".encode("latin-1"))
    diagnostics = Diagnostics()
    read(str(tmp_path / "latin"), diagnostics)
    assert [str(item.position) for item in diagnostics] == [f"{tmp_path}/latin:2:2"]


def test_epoch_times_offsets_and_whole_floats_are_read(tmp_path: Path) -> None:
    row = '{"timestamp": %s, "input_length": 12.0, "output_length": 3}\n'
    for content in (
        HEAD + "1700000000,12.0,3\n1700000001.5,12,3.0\n",
        "\ufeff" + row % 1_700_000_000_000 + row % 1_700_000_001_500,
        AZURE + "2023-11-16 18:15:46.6805900+01:00,12,3\n2023-11-16 17:15:48.1805900Z,12,3\n",
    ):
        (tmp_path / "trace").write_text(content)
        trace, messages = trace_and_messages(tmp_path / "trace")
        assert (trace and list(trace.times), messages) == ([0.0, 1.5], [])
        assert trace is not None
        assert (list(trace.prompts), list(trace.answers)) == ([12, 12], [3, 3])


def test_epoch_milliseconds_in_a_csv_are_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "trace"
    file.write_text(HEAD + "1700000000000,1,1\n1700000000200,1,1\n1700000001500,1,1\n")
    diagnostics = Diagnostics()
    trace = read(str(file), diagnostics)
    assert trace is not None
    assert list(trace.times) == pytest.approx([0.0, 0.2, 1.5], abs=1e-6)
    (warning,) = diagnostics
    assert str(warning).startswith(f"{file}:2:1: warning LB033: 1700000000000 can only be milliseconds since the epoch")
    assert "divide them by 1000" in warning.hint


def test_epoch_seconds_in_json_lines_are_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "trace"
    for first, warnings in ((0, 0), (86_400_000, 0), (1_700_000_000.25, 1), (1_700_000_000_000, 0)):
        rows = [{"timestamp": first + at, "input_length": 5, "output_length": 5} for at in (0, 1)]
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        diagnostics = Diagnostics()
        trace = read(str(file), diagnostics)
        assert trace is not None
        assert trace.times[1] == pytest.approx(0.001, abs=1e-6)
        messages = [str(item) for item in diagnostics]
        assert len(messages) == warnings, first
        assert all("warning LB033: 1700000000 looks like seconds since the epoch" in item for item in messages)


def test_a_pause_of_more_than_a_day_is_one_warning(tmp_path: Path) -> None:
    file = tmp_path / "trace"
    file.write_text(HEAD + "0,1,1\n86400,1,1\n1e8,1,1\n2e8,1,1\n")
    diagnostics = Diagnostics()
    trace = read(str(file), diagnostics)
    assert trace is not None
    (warning,) = diagnostics
    assert str(warning).startswith(f"{file}:4:1: warning LB031: no request for 1156 days before this one")
    assert "milliseconds" in warning.hint


def test_reading_stops_after_20_rows_with_errors(tmp_path: Path) -> None:
    messages = error_messages(tmp_path, HEAD + "x,1,1\n" * 1000).splitlines()
    assert len(messages) == 21
    assert messages[-1] == "21: 20 rows have errors; lbctl did not read the rest"


def test_a_url_a_directory_or_a_huge_file_is_rejected(tmp_path: Path) -> None:
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(10 << 30)
    for name, expected in {
        "https://example.com/trace.csv": "a trace must be a file, not a URL",
        str(tmp_path): "not a regular file",
        str(tmp_path / "nowhere"): "cannot be read: No such file",
        "/dev/zero": "not a regular file",
        str(huge): "it has 10.7 GB",
    }.items():
        trace, messages = trace_and_messages(name)
        assert trace is None
        assert len(messages) == 1
        assert expected in messages[0]

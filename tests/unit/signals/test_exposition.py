"""Which lines of a page are read, and which are refused."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbctl.signals.exposition import MAX_LINE_BYTES, MAX_LINES, MetricsReader
from tests.support.paths import DATA
from tests.support.signals import needs_shared

_CASES = DATA / "openmetrics-parsers"
_NOT_JUDGED = (
    "bad_blank_line", "bad_clashing_names", "bad_counter_values_9", "bad_exemplar", "bad_grouping_or_ordering",
    "bad_help", "bad_histograms", "bad_info_and_stateset_values", "bad_metadata", "bad_metric_names",
    "bad_missing_or_invalid_labels_for_a_type", "bad_no_eof", "bad_repeated_metadata", "bad_stateset_info_values",
    "bad_text_after_eof", "bad_type", "bad_unit",
)  # fmt: skip
"""What is wrong there is no line that we read: types, help, units, the order of lines, the length of exemplars."""
_STRICTER = {
    "duplicate_timestamps_0", "duplicate_timestamps_1", "labels_and_infinite", "nan", "nan_gauge",
    "negative_bucket_gaugehistogram", "roundtrip",
}  # fmt: skip
"""Good pages with lines that give us nothing: NaN, infinities, negatives, and a series that occurs twice."""


def _values(page: bytes, name: str = "a") -> list[float] | None:
    found = MetricsReader([name]).read(page)
    return [sample.value for sample in found.samples[name]] if name in found.samples else None


def _cases() -> list[Path]:
    return sorted(_CASES.iterdir()) if _CASES.is_dir() else []


@needs_shared
@pytest.mark.parametrize("case", _cases(), ids=lambda path: path.name)
def test_the_verdicts_of_openmetrics_hold_for_the_lines_that_are_read(case: Path) -> None:
    page = (case / "metrics").read_bytes()
    names = {name.decode() for name in re.findall(rb"^([A-Za-z_:][A-Za-z0-9_:]*)", page, re.MULTILINE)}
    good = json.loads((case / "test.json").read_text())["shouldParse"]
    refused = bool(MetricsReader(names).read(page).refused)
    if case.name in _STRICTER:
        assert refused
    elif good or not case.name.startswith(_NOT_JUDGED):
        assert refused is not good


@pytest.mark.parametrize(
    "value",
    [
        "NaN",
        "nan",
        "+Inf",
        "-Inf",
        "inf",
        "-1",
        "-0.5",
        "1e400",
        "٣",
        "1_000",
        "0x10",
        "",
        "one",
        "1.2.3",
        "1 2 3",
        "--1",
    ],
)
def test_what_is_no_finite_number_from_0_on_is_refused_and_never_0(value: str) -> None:
    found = MetricsReader(["a"]).read(f"a {value}\nb 1\n".encode())
    assert "a" not in found.samples
    assert len(found.refused["a"]) == 1


@pytest.mark.parametrize(
    ("value", "number"),
    [("0", 0), ("1", 1), ("+1.5", 1.5), (".5", 0.5), ("2.", 2), ("3.9e+010", 3.9e10), ("1E-3", 0.001)],
)
def test_numbers_are_read_as_exporters_write_them(value: str, number: float) -> None:
    assert _values(f"a {value}\n".encode()) == [number]


@pytest.mark.parametrize(
    "line",
    [
        'a{x="1"} 4', 'a {x="1"} 4', 'a{x="1",} 4', 'a{ x = "1" , y="2" , } 4', 'a{x="1"}\t4', 'a{x="1"}4', "a\t4",
        "a 4 1395066363000", "a  4  ", "a 4\r", 'a{x="}\\" 7"} 4', "a{} 4", 'a{x="ü"} 4',
    ],
)  # fmt: skip
def test_the_loose_forms_of_prometheus_are_read(line: str) -> None:
    assert _values(f"# HELP a b\n{line}\n".encode()) == [4]


@pytest.mark.parametrize("line", ['a{x="1" 4', "a{x=1} 4", 'a{x="1"} ', 'a{x="1"y="2"} 4', "a{,} 4", 'a{x="\xff"} 4'])
def test_a_line_that_breaks_the_grammar_is_refused(line: str) -> None:
    assert _values(line.encode("latin-1") + b"\n") is None


def test_labels_are_read_with_their_escapes() -> None:
    found = MetricsReader(["a"]).read(b'a{x="1\\"2\\\\3\\n4",y="}"} 1\n')
    assert found.samples["a"][0].labels == {"x": '1"2\\3\n4', "y": "}"}


def test_a_longer_name_is_another_metric() -> None:
    page = b'vllm:n 1\nvllm:n_total 2\nvllm:n:rate 3\nxvllm:n 4\n# vllm:n 5\nvllm:n{a="b"} 6\n'
    assert _values(page, "vllm:n") == [1, 6]


def test_a_series_that_stands_twice_gives_nothing_and_the_others_stay() -> None:
    found = MetricsReader(["a"]).read(b'a{x="1"} 1\na{x="2"} 2\na{x="1"} 1\n')
    assert [sample.value for sample in found.samples["a"]] == [2]
    assert [line.labels for line in found.refused["a"]] == [{"x": "1"}]


def test_a_label_that_stands_twice_is_refused() -> None:
    assert _values(b'a{x="1",x="2"} 1\n') is None


def test_a_line_that_is_too_long_is_refused_and_the_next_is_read() -> None:
    page = b'a{x="' + b"y" * MAX_LINE_BYTES + b'"} 1\na 2\n'
    assert _values(page) == [2]


def test_a_page_with_thousands_of_wanted_lines_gives_nothing() -> None:
    page = b"".join(b'a{x="%d"} 1\n' % number for number in range(MAX_LINES + 1))
    found = MetricsReader(["a"]).read(page)
    assert found.samples == {}
    assert "a" in found.refused


@pytest.mark.parametrize(
    "page",
    [
        b"a{" + b" " * 60_000 + b"!\n", b'a{x="1"' + b" " * 60_000 + b"!\n", b"a" + b" \t" * 30_000 + b"!\n",
        b'a{x="' + b"\\\\" * 30_000 + b"\n", b"a " + b"1" * 60_000 + b"!\n", b'a{x="1"' + b',x="1"' * 10_000 + b"!\n",
        b"a" * 1_000_000, b"\na" * 500_000,
    ],
)  # fmt: skip
def test_no_page_takes_long_to_refuse(page: bytes) -> None:
    started = time.process_time()
    assert _values(page) is None
    assert time.process_time() - started < 5


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(page: bytes) -> None:
    for ending in (b"", b"\n# EOF\n"):
        found = MetricsReader(["a", "b"]).read(b"a" + page + ending)
        for samples in found.samples.values():
            assert all(0 <= sample.value < float("inf") for sample in samples)


_label_value = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=20)


@given(
    st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), _label_value, max_size=4),
    st.floats(0, 1e300, allow_nan=False),
    st.booleans(),
)
def test_what_an_exporter_writes_is_what_is_read(labels: dict[str, str], value: float, strict: bool) -> None:
    escaped = {key: text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for key, text in labels.items()}
    inside = ",".join(f'{key}="{text}"' for key, text in escaped.items())
    line = f"a{{{inside}}} {value!r}\n" if labels else f"a {value!r}\n"
    found = MetricsReader(["a"]).read((line + ("# EOF\n" if strict else "")).encode())
    assert [(dict(sample.labels), sample.value) for sample in found.samples["a"]] == [(labels, value)]

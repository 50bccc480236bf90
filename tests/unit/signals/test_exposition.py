"""The lines of a metrics page that are read, and the lines that are rejected."""

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
from tests.support.signals import needs_real_data

_CASES = DATA / "openmetrics-parsers"
_NOT_JUDGED = (
    "bad_blank_line", "bad_clashing_names", "bad_counter_values_9", "bad_exemplar", "bad_grouping_or_ordering",
    "bad_help", "bad_histograms", "bad_info_and_stateset_values", "bad_metadata", "bad_metric_names",
    "bad_missing_or_invalid_labels_for_a_type", "bad_no_eof", "bad_repeated_metadata", "bad_stateset_info_values",
    "bad_text_after_eof", "bad_type", "bad_unit",
)  # fmt: skip
"""Cases about parts that lbctl does not read: types, help, units, the order of lines, the length of exemplars."""
_STRICTER = {
    "duplicate_timestamps_0", "duplicate_timestamps_1", "labels_and_infinite", "nan", "nan_gauge",
    "negative_bucket_gaugehistogram", "roundtrip",
}  # fmt: skip
"""Valid pages with lines that lbctl rejects: NaN, infinities, negative values, and duplicate series."""


def values_of(page: bytes, name: str = "a") -> list[float] | None:
    parsed = MetricsReader([name]).read(page)
    return [sample.value for sample in parsed.samples[name]] if name in parsed.samples else None


def _cases() -> list[Path]:
    return sorted(_CASES.iterdir()) if _CASES.is_dir() else []


@needs_real_data
@pytest.mark.parametrize("case", _cases(), ids=lambda path: path.name)
def test_openmetrics_test_cases_are_accepted_or_rejected(case: Path) -> None:
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
def test_a_bad_number_is_rejected(value: str) -> None:
    parsed = MetricsReader(["a"]).read(f"a {value}\nb 1\n".encode())
    assert "a" not in parsed.samples
    assert len(parsed.refused["a"]) == 1


@pytest.mark.parametrize(
    ("value", "number"),
    [("0", 0), ("1", 1), ("+1.5", 1.5), (".5", 0.5), ("2.", 2), ("3.9e+010", 3.9e10), ("1E-3", 0.001)],
)
def test_all_number_formats_of_exporters_are_read(value: str, number: float) -> None:
    assert values_of(f"a {value}\n".encode()) == [number]


@pytest.mark.parametrize(
    "line",
    [
        'a{x="1"} 4', 'a {x="1"} 4', 'a{x="1",} 4', 'a{ x = "1" , y="2" , } 4', 'a{x="1"}\t4', 'a{x="1"}4', "a\t4",
        "a 4 1395066363000", "a  4  ", "a 4\r", 'a{x="}\\" 7"} 4', "a{} 4", 'a{x="ü"} 4',
    ],
)  # fmt: skip
def test_loose_prometheus_syntax_is_read(line: str) -> None:
    assert values_of(f"# HELP a b\n{line}\n".encode()) == [4]


@pytest.mark.parametrize("line", ['a{x="1" 4', "a{x=1} 4", 'a{x="1"} ', 'a{x="1"y="2"} 4', "a{,} 4", 'a{x="\xff"} 4'])
def test_a_line_with_bad_syntax_is_rejected(line: str) -> None:
    assert values_of(line.encode("latin-1") + b"\n") is None


def test_labels_are_read_with_their_escapes() -> None:
    parsed = MetricsReader(["a"]).read(b'a{x="1\\"2\\\\3\\n4",y="}"} 1\n')
    assert parsed.samples["a"][0].labels == {"x": '1"2\\3\n4', "y": "}"}


def test_a_longer_name_is_another_metric() -> None:
    page = b'vllm:n 1\nvllm:n_total 2\nvllm:n:rate 3\nxvllm:n 4\n# vllm:n 5\nvllm:n{a="b"} 6\n'
    assert values_of(page, "vllm:n") == [1, 6]


def test_a_duplicate_series_is_rejected_alone() -> None:
    parsed = MetricsReader(["a"]).read(b'a{x="1"} 1\na{x="2"} 2\na{x="1"} 1\n')
    assert [sample.value for sample in parsed.samples["a"]] == [2]
    assert [line.labels for line in parsed.refused["a"]] == [{"x": "1"}]


def test_a_duplicate_label_is_rejected() -> None:
    assert values_of(b'a{x="1",x="2"} 1\n') is None


def test_a_too_long_line_is_rejected_alone() -> None:
    page = b'a{x="' + b"y" * MAX_LINE_BYTES + b'"} 1\na 2\n'
    assert values_of(page) == [2]


def test_a_metric_with_too_many_lines_is_rejected() -> None:
    page = b"".join(b'a{x="%d"} 1\n' % number for number in range(MAX_LINES + 1))
    parsed = MetricsReader(["a"]).read(page)
    assert parsed.samples == {}
    assert "a" in parsed.refused


@pytest.mark.parametrize(
    "page",
    [
        b"a{" + b" " * 60_000 + b"!\n", b'a{x="1"' + b" " * 60_000 + b"!\n", b"a" + b" \t" * 30_000 + b"!\n",
        b'a{x="' + b"\\\\" * 30_000 + b"\n", b"a " + b"1" * 60_000 + b"!\n", b'a{x="1"' + b',x="1"' * 10_000 + b"!\n",
        b"a" * 1_000_000, b"\na" * 500_000,
    ],
)  # fmt: skip
def test_bad_pages_are_rejected_quickly(page: bytes) -> None:
    started = time.process_time()
    assert values_of(page) is None
    assert time.process_time() - started < 5


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_rejected(page: bytes) -> None:
    for ending in (b"", b"\n# EOF\n"):
        parsed = MetricsReader(["a", "b"]).read(b"a" + page + ending)
        for samples in parsed.samples.values():
            assert all(0 <= sample.value < float("inf") for sample in samples)


_label_name = st.builds(str.__add__, st.sampled_from("amz_"), st.text("amz_059", max_size=8))
_label_value = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=20)


@given(
    st.dictionaries(_label_name, _label_value, max_size=4),
    st.floats(0, 1e300, allow_nan=False),
    st.booleans(),
)
def test_written_labels_and_values_are_read_back(labels: dict[str, str], value: float, strict: bool) -> None:
    escaped = {key: text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for key, text in labels.items()}
    inside = ",".join(f'{key}="{text}"' for key, text in escaped.items())
    line = f"a{{{inside}}} {value!r}\n" if labels else f"a {value!r}\n"
    parsed = MetricsReader(["a"]).read((line + ("# EOF\n" if strict else "")).encode())
    assert [(dict(sample.labels), sample.value) for sample in parsed.samples["a"]] == [(labels, value)]

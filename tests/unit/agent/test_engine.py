"""Values of the engine's metrics page, from recorded pages, and the engine's key."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.agent.engine import EngineWatch, PageReader
from lbctl.agent.engine_key import key_header
from lbctl.agent.readings import EngineReading
from lbctl.base.registry import UnknownName
from tests.support.agent import settings
from tests.support.signals import fixture, kind_of

_STARTED = b"process_start_time_seconds 1.7e+09\n"


@pytest.mark.parametrize(
    ("name", "in_flight", "finished", "by_steps"),
    [
        ("vllm_v1", 24, 902, True),
        ("vllm_0_33", 38, 0, True),
        ("sglang", 5, None, False),
        ("sglang_ranks", 12, 100, True),
        ("tgi", 13, 40, True),
        ("trtllm", 9, 155, False),
        ("lmdeploy", 6, 20, True),
        ("nim", 8, 30, True),
        ("llamacpp", 50, None, True),
        ("triton", None, 1500, False),
        ("torchserve", None, 42, False),
    ],
)
def test_pages_of_engines(name: str, in_flight: int | None, finished: int | None, by_steps: bool) -> None:
    values = PageReader(kind_of(name)).read(fixture(name), 1.0)
    reading = EngineReading(1.0, True, signals=values.signals, counters=values.counters)
    assert reading.in_flight == in_flight
    assert values.counters.get("finished") == finished
    assert ("progress" in values.signals, values.by_steps, values.problem) == (True, by_steps, "")


def test_fallen_counters_show_a_restart() -> None:
    reader = PageReader("vllm")
    page = fixture("vllm_v1")
    fresh = page.replace(b"200000.0", b"5.0")
    assert fresh != page
    found = [reader.read(text, float(at)).restarted for at, text in enumerate([page, page, fresh, fresh])]
    assert found == [False, False, True, False]


def test_unusable_page_between_two_pages_hides_no_restart() -> None:
    reader = PageReader("vllm")
    page = fixture("vllm_v1")
    reader.read(page, 1.0)
    assert reader.read(b"up 1\n", 2.0).problem == "the page has no usable vLLM metric"
    assert reader.read(page.replace(b"200000.0", b"5.0"), 3.0).restarted


def test_rates_come_from_two_pages() -> None:
    reader = PageReader("vllm")
    assert "throughput" not in reader.read(fixture("vllm_v1"), 1.0).signals
    assert reader.read(fixture("vllm_v1"), 2.0).signals["throughput"] == 0.0


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (b"", None),
        (_STARTED, 1.7e9),
        (b"process_start_time_seconds 0\n", None),
        (b'process_start_time_seconds{pid="1"} 1\nprocess_start_time_seconds{pid="2"} 2\n', None),
    ],
)
def test_start_time_of_the_engine(lines: bytes, expected: float | None) -> None:
    assert PageReader("vllm").read(fixture("vllm_v1") + lines, 1.0).started_at == expected


def test_unknown_kind_is_refused_at_the_start() -> None:
    with pytest.raises(UnknownName, match="vllm"):
        EngineWatch(settings(kind="vlm"))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "the key file cannot be read (no such file or directory)"),
        (b"\xff", "the key file is not UTF-8"),
        (b"", "the key file is not a single line of at most 2048 printable ASCII characters"),
        (b"one\ntwo\n", "the key file is not a single line of at most 2048 printable ASCII characters"),
        (b"k" * 2049, "the key file is not a single line of at most 2048 printable ASCII characters"),
    ],
    ids=["missing", "binary", "empty", "two lines", "long"],
)
def test_unusable_key_file(tmp_path: Path, content: bytes | None, problem: str) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    assert key_header(settings(key_file=str(file))) == ({}, problem)


def test_key_has_the_prefix_of_its_header(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("secret\n")
    header = key_header(settings(key_file=str(file), key_prefix="Bearer "))
    assert header == ({"authorization": "Bearer secret"}, "")


def test_key_is_read_again_after_a_rotation(tmp_path: Path) -> None:
    file = tmp_path / "key"
    for key in ("Bearer first", "Bearer second"):
        file.write_text(f"{key}\n")
        assert key_header(settings(key_file=str(file), key_header="x-key")) == ({"x-key": key}, "")

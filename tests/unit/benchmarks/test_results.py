"""The file of benchmark results: it can be continued, and its percentiles are times of requests."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.peers.results import Cost, Harness, Result, Results, Times, append_machine, append_result


def _result(seed: int) -> Result:
    times = Times.of([float(each) for each in range(1, 101)])
    return Result(
        "mixed-50", "smg", seed, 100, 1, {"502": 1}, times, times, 1000.0, None, 0.1, Cost(1.0, 0.0), Cost(20.0, 0.0),
        Harness(0.5, 0.1, 0.2, 3.0),
    )  # fmt: skip


def test_results_are_read_as_they_were_appended(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    append_machine(path, {"cores": 2})
    append_result(path, _result(1))
    append_result(path, _result(0))
    results = Results.read(path)
    assert results.machine == {"cores": 2}
    assert results.of("mixed-50", "smg") == {0: _result(0), 1: _result(1)}
    assert results.of("mixed-50", "litellm") == {}


def test_missing_file_has_no_results(tmp_path: Path) -> None:
    assert Results.read(tmp_path / "none").machine == {}


def test_percentiles_are_times_of_requests() -> None:
    times = Times.of([5.0, 1.0, 4.4, 2.0, 3.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.6])
    assert (times.p50, times.p90, times.p99) == (6.0, 10.0, 11.6)

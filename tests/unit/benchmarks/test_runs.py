"""The command of the comparison with peers: it continues its file, and rejects one from another machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.peers import __main__ as command
from tests.benchmarks.peers import systems
from tests.benchmarks.peers.cases import CASES
from tests.benchmarks.peers.results import Cost, Harness, Result, Results, Times


def _result(case: str, system: str) -> Result:
    times = Times.of([1.0])
    return Result(
        case, system, 0, 1, 0, {}, times, times, 1.0, None, None, Cost(1.0, 0.0), Cost(1.0, 0.0), Harness(0, 0, 0, 0)
    )


def test_runs_with_results_are_skipped() -> None:
    kept = Results({}, [_result("mixed-70", each.name) for each in systems.of(CASES[1]) if "smg" not in each.name])
    runs = [*command._runs(kept, "mixed-70", "", 2)]
    assert [(seed, len(group)) for _, seed, group in runs] == [(0, 2), (1, len(systems.of(CASES[1])))]


def test_slow_systems_run_alone() -> None:
    groups = [group for _, _, group in command._runs(Results({}), "mixed-50", "", 1)]
    assert [{each.name for each in group if each.is_slow} for group in groups] == [set(), {"litellm", "litellm, rust"}]
    assert all(each.is_slow for each in groups[1])


def test_every_case_has_a_seed_before_any_has_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LBCTL_DATA", "/nowhere")
    seeds = [seed for _, seed, _ in command._runs(Results({}), "", "", 2)]
    assert seeds == sorted(seeds)


def test_results_of_another_machine_are_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.jsonl"
    monkeypatch.setattr(command, "_machine", lambda: {"cores": 2})
    assert command._continue(path)
    assert command._continue(path)
    monkeypatch.setattr(command, "_machine", lambda: {"cores": 4})
    assert not command._continue(path)
    assert "has results with a different cores (2 and 4): delete it first" in capsys.readouterr().err

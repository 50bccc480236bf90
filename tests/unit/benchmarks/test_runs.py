"""The command of the comparison with peers: it continues its file, and rejects one from another machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.benchmarks.peers import __main__ as command
from tests.benchmarks.peers import systems
from tests.benchmarks.peers.cases import CASES, Case
from tests.benchmarks.peers.results import Cost, Harness, Result, Results, Times
from tests.benchmarks.peers.systems import System
from tests.benchmarks.peers.trial import SEEDS, in_turn


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


def test_no_system_is_always_first_or_last() -> None:
    compared = systems.of(CASES[1])
    orders = [in_turn(compared, seed) for seed in range(SEEDS)]
    assert all({each.name for each in order} == {each.name for each in compared} for order in orders)
    for place in (0, -1):
        assert len({order[place].name for order in orders}) == SEEDS


def test_system_that_does_not_start_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.jsonl"
    written: list[Results] = []
    monkeypatch.setattr(command, "BIN", tmp_path)
    monkeypatch.setattr(command, "_machine", lambda: {"cores": 2})
    monkeypatch.setattr(command.report, "RESULTS", path)
    monkeypatch.setattr(command.report, "write", written.append)
    monkeypatch.setattr(command, "many_connections", lambda _: None)
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    started = {"smg, cache_aware": False}

    def run(case: Case, group: Sequence[System], seed: int) -> tuple[list[Result], list[str]]:
        names = [each.name for each in group]
        missing = [name for name in names if not started.get(name, True)]
        return [_result(case.name, name) for name in names if name not in missing], missing

    monkeypatch.setattr(command, "run", run)
    monkeypatch.setattr(command.cases, "CASES", CASES[1:2])
    monkeypatch.setattr(command.sys, "argv", ["peers", "--seeds", "1", "--results", str(path)])
    assert command.main() == 1
    assert "not started: smg, cache_aware (mixed-70, seed 0)" in capsys.readouterr().err
    assert not written
    started.clear()
    assert command.main() == 0
    assert [len(each.of("mixed-70", "smg, cache_aware")) for each in written] == [1]


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

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


def test_every_case_has_a_seed_before_any_has_two() -> None:
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


def _begin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *arguments: str) -> Path:
    """Prepare the command, so that it makes no real run. Return the file of its results."""
    path = tmp_path / "results.jsonl"
    monkeypatch.setattr(command, "BIN", tmp_path)
    monkeypatch.setattr(command, "_machine", lambda: {"cores": 2})
    monkeypatch.setattr(command, "many_connections", lambda _: None)
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    monkeypatch.setattr(command, "run", lambda case, group, _: ([_result(case.name, it.name) for it in group], []))
    monkeypatch.setattr(command.sys, "argv", ["peers", "--seeds", "1", "--results", str(path), *arguments])
    return path


def test_command_without_missing_runs_names_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _begin(monkeypatch, tmp_path, "--case", "mixed-70")
    assert command.main() == 0
    assert "nothing to run" not in capsys.readouterr().out
    assert command.main() == 0
    assert f"nothing to run: {path} contains all results" in capsys.readouterr().out


def test_unknown_system_is_an_error_with_the_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _begin(monkeypatch, tmp_path, "--case", "mixed-70", "--system", "nonsense")
    with pytest.raises(SystemExit) as caught:
        command.main()
    assert caught.value.code == 2
    assert "nginx, least_conn; smg, cache_aware" in capsys.readouterr().err
    assert not path.exists()


def test_missing_file_of_a_trace_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _begin(monkeypatch, tmp_path, "--case", "mooncake")
    monkeypatch.setenv("LBCTL_DATA", str(tmp_path))
    assert command.main() == 1
    assert "mooncake needs mooncake-arxiv-first-1000.jsonl" in capsys.readouterr().err
    assert not Results.read(path).of("mooncake", "smg, cache_aware")
    (tmp_path / "mooncake-arxiv-first-1000.jsonl").touch()
    assert command.main() == 0
    assert Results.read(path).of("mooncake", "smg, cache_aware")


def test_interrupt_prints_a_single_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    _begin(monkeypatch, tmp_path, "--case", "mixed-70")
    monkeypatch.setattr(command, "run", interrupted)
    assert command.main() == 130
    assert capsys.readouterr().err == "stopped: the same command continues with the missing runs\n"


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

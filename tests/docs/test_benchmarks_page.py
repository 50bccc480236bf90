"""The page of the benchmarks, from made-up results: answers, losses and wins, costs, failures, and missing runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.peers import report
from tests.benchmarks.peers.cases import CASES
from tests.benchmarks.peers.panels import panels
from tests.benchmarks.peers.results import Cost, Harness, Result, Results, Times
from tests.benchmarks.peers.systems import of
from tests.benchmarks.peers.table import Table, table
from tests.benchmarks.peers.verdicts import reasons

_SEEDS = 5
_OWN, _PEER, _OTHER = "lbctl pick, envoy", "smg, cache_aware", "nginx, least_conn"
_REQUESTS = [float(each) for each in range(100, 500)]


@dataclass(frozen=True)
class _System:
    name: str
    mode: str = ""
    settings: str = "Default settings."
    source: str = "https://example.com/settings"


@dataclass(frozen=True)
class _Case:
    name: str
    title: str
    group: str = "mixed"
    description: str = "Poisson arrivals."
    limit: str = "The clients."
    modes: tuple[str, ...] = ("pick",)


_MIXED, _WEDGED = _Case("mixed-50", "Mixed GPUs, load 50 %"), _Case("wedged", "Wedged replica", "faults")
_SYSTEMS = (_System(_PEER), _System(_OTHER), _System(_OWN, "pick"))


def _result(case: str, system: str, seed: int, factor: float = 1.0, **changes: Any) -> Result:
    times = Times.of([each * factor * (1 + seed / 20) for each in _REQUESTS])
    usual = Result(
        case, system, seed, len(_REQUESTS), 0, {}, times, times, 1000.0, None, 0.1, Cost(1.0, 0.5), Cost(20.0, 80.0),
        Harness(0.5, 0.1, 0.2, 3.0),
    )  # fmt: skip
    return replace(usual, **changes)


def _first_p99(milliseconds: float) -> Result:
    return _result("mixed-50", _OWN, 0, first=Times(1.0, 1.0, 1.0, milliseconds))


def _runs(case: str, system: str, factors: Sequence[float], **changes: Any) -> dict[int, Result]:
    return {seed: _result(case, system, seed, factor, **changes) for seed, factor in enumerate(factors)}


def _table(**systems: dict[int, Result]) -> Table:
    """Return the results of the systems own, peer and other in one case."""
    names = {"own": _OWN, "peer": _PEER, "other": _OTHER}
    ran = {(group[0].case, names[name]): group for name, group in systems.items()}
    machine = {
        "date": "2026-11-30", "cores": 2, "processor": "EPYC", "memory_gib": 24.0, "versions": {"smg": "1.13.0"}
    }  # fmt: skip
    compared = {case.name: _SYSTEMS for case in (_MIXED, _WEDGED)}
    groups = {"mixed": "Which router suits mixed GPUs?", "faults": "Which router survives faults?"}
    return Table(machine, groups, (_MIXED, _WEDGED), compared, ran, _SEEDS)  # type: ignore[arg-type]


def _faster(factors: Sequence[float] = (0.5, 0.51, 0.5, 0.49, 0.5)) -> Table:
    return _table(own=_runs("mixed-50", _OWN, factors), peer=_runs("mixed-50", _PEER, [1.0] * _SEEDS))


def _section(text: str, title: str) -> str:
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_win_has_both_values_and_the_interval() -> None:
    text = report.page(_faster())
    sides = "0.164 s (envoy) | 0.329 s (smg, cache_aware) | −0.164 s (−0.181 to −0.148)"
    assert f"| Mixed GPUs, load 50 % | pick | TTFT p50 | {sides} |" in _section(text, "Where lbctl wins")
    assert "Nowhere" in _section(text, "Where lbctl loses")


def test_loss_has_its_reason_or_is_not_yet_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slower = _faster([2.0] * _SEEDS)
    known = tmp_path / "reasons.yaml"
    known.write_text("- {cases: [mixed-50], mode: pick, figures: [ttft_p50], reason: A pick takes a millisecond.}")
    monkeypatch.setattr(report, "reasons", lambda: reasons(known))
    rows = _section(report.page(slower), "Where lbctl loses").splitlines()
    assert [row.endswith("| A pick takes a millisecond. |") for row in rows if "TTFT p50" in row] == [True]
    assert [row.endswith("| not yet explained |") for row in rows if "TTFT p99" in row] == [True]


def test_difference_within_the_seeds_is_in_neither_table() -> None:
    text = report.page(_faster([0.8, 1.3, 0.7, 1.2, 1.0]))
    assert "Nowhere" in _section(text, "Where lbctl loses")
    assert "Nowhere" in _section(text, "Where lbctl wins")
    answer = "shows no measurable difference from the best of the other systems in “Mixed GPUs, load 50 %” (pick)."
    assert f"For TTFT p99, lbctl {answer}" in text


def test_answer_lists_the_cases_by_the_figure_of_the_chart() -> None:
    better = "lbctl performs better than the best of the other systems in “Mixed GPUs, load 50 %” (pick)."
    assert f"For TTFT p99, {better}" in report.page(_faster())
    failing = _runs("wedged", _OWN, [1.0] * _SEEDS, failed=4, reasons={"502": 4})
    text = report.page(_table(own=failing, peer=_runs("wedged", _PEER, [1.0] * _SEEDS)))
    worse = "lbctl performs worse than the best of the other systems in “Wedged replica” (pick)."
    assert f"For failed requests, {worse}" in text
    assert "Why requests failed: lbctl pick, envoy: 20 × 502." in text


def test_answer_lists_losses_and_wins_outside_the_chart() -> None:
    own = {
        seed: replace(each, first=Times(1.0, 900.0, 901.0, 902.0 + seed))
        for seed, each in _runs("mixed-50", _OWN, [0.5] * _SEEDS).items()
    }
    text = report.page(_table(own=own, peer=_runs("mixed-50", _PEER, [1.0] * _SEEDS)))
    assert "For TTFT p99, lbctl performs worse than" in text
    assert "Other losses: “Mixed GPUs, load 50 %” (pick: TTFT p50)." in text
    assert "Other wins: “Mixed GPUs, load 50 %” (pick: whole p50 and whole p99)." in text


def test_answer_without_failures_compares_nothing() -> None:
    same = {name: _runs("wedged", system, [1.0] * _SEEDS) for name, system in (("own", _OWN), ("peer", _PEER))}
    text = report.page(_table(**same))
    assert "No requests failed with lbctl or with the best of the other systems in “Wedged replica”." in text
    assert "of the 4 comparisons" in text.replace("\n", " ")


def test_proxies_with_a_loss_are_listed_though_envoy_wins() -> None:
    found = _faster()
    nginx = "lbctl pick, nginx"
    compared = {**found.systems, "mixed-50": (*_SYSTEMS, _System(nginx, "pick"))}
    ran = {**found.results, ("mixed-50", nginx): _runs("mixed-50", nginx, [2.0] * _SEEDS)}
    text = report.page(replace(found, systems=compared, results=ran))  # type: ignore[arg-type]
    assert "Nowhere" in _section(text, "Where lbctl loses")
    rows = _section(text, "Which proxy suits lbctl pick?")
    assert "in 1 of 1 cases, and is worse than the best of the other systems in 0." in rows
    assert "With nginx or HAProxy, it is worse in 1." in rows
    assert "| Mixed GPUs, load 50 % | **1.09 s** |  | 0.272 s | 0.544 s (smg, cache_aware) |" in rows


def test_page_begins_with_the_verdict_and_its_terms() -> None:
    first = " ".join(report.page(_faster()).partition("![")[0].split())
    assert "lbctl performs better in 4 and worse in 0. In 0, the difference is not measurable." in first
    assert all(f'"{term}" is ' in first for term in ("TTFT", "whole", "p50", "p99", "lbctl static", "lbctl pick"))


def test_best_of_several_peers_is_compared() -> None:
    systems = {"own": _runs("mixed-50", _OWN, [1.0] * _SEEDS), "peer": _runs("mixed-50", _PEER, [2.0] * _SEEDS)}
    assert "(smg, cache_aware)" in _section(report.page(_table(**systems)), "Where lbctl wins")
    systems["other"] = _runs("mixed-50", _OTHER, [0.5] * _SEEDS)
    assert "(nginx, least_conn)" in _section(report.page(_table(**systems)), "Where lbctl loses")


def test_system_that_lacks_a_seed_is_listed_and_not_compared() -> None:
    systems = {name: _runs("mixed-50", system, [1.0] * 5) for name, system in (("own", _OWN), ("peer", _PEER))}
    text = report.page(_table(**systems, other=_runs("mixed-50", _OTHER, [0.1] * 4)))
    assert "mixed-50: nginx, least_conn (4 of 5 seeds); wedged: all systems (0 of 5 seeds)." in text
    assert "Nowhere" in _section(text, "Where lbctl loses")


def test_page_of_three_seeds_lists_no_missing_seeds() -> None:
    kept = [_result(case.name, each.name, seed) for case in CASES for each in of(case) for seed in range(3)]
    text = report.page(table(Results({}, kept)))
    assert "with fewer seeds" not in text
    assert "case is run 3 times with different seeds" in text


def test_page_without_results_lists_all_cases() -> None:
    text = report.page(_table())
    assert "mixed-50: all systems (0 of 5 seeds); wedged: all systems (0 of 5 seeds)." in text
    assert text.count("Not run yet.") == 5


def test_every_case_has_its_command_limit_and_settings() -> None:
    text = report.page(_table())
    assert '| Wedged replica | `make bench-peers ARGS="--case wedged --results new.jsonl"` | The clients. |' in text
    assert "| smg, cache_aware | all | Default settings. | <https://example.com/settings> |" in text


def test_value_is_the_mean_of_the_seeds_with_its_interval() -> None:
    own = dict(enumerate(map(_first_p99, (100.0, 200.0, 300.0, 400.0, 500.0))))
    text = report.page(_table(own=own, peer=_runs("mixed-50", _PEER, [1.0] * _SEEDS)))
    row = next(line for line in text.splitlines() if line.startswith(f"| {_OWN} | 0.00100 |"))
    assert "| 0.300 (0.104–0.496) |" in row
    assert "Each system received at least 2,000 requests." in text


def test_busy_machine_is_marked() -> None:
    assert "may have affected" not in report.page(_faster())
    busy = _runs("mixed-50", _OWN, [1.0] * _SEEDS, harness=Harness(0.97, 0.1, 0.2, 3.0))
    assert "busy for at most 97% of any run. **This may have affected the times.**" in report.page(_table(own=busy))


def test_charts_have_the_best_configuration_of_each_product() -> None:
    found = panels(_faster())
    assert found.keys() == {"benchmarks-mixed.svg", "benchmarks-costs.svg"}
    (panel,) = found["benchmarks-mixed.svg"]
    assert panel.title == "Mixed GPUs, load 50 %: TTFT p99"
    assert [(bar.name, bar.text, bar.own) for bar in panel.bars] == [
        ("lbctl pick", "0.272 s", True),
        ("smg", "0.544 s", False),
    ]
    assert [each.title for each in found["benchmarks-costs.svg"]] == [
        "Mixed GPUs, load 50 %: CPU",
        "Mixed GPUs, load 50 %: memory",
    ]


def test_headline_replaces_only_the_marked_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "HEADLINES", [("mixed-50", report.figures.TTFT_P99)])
    text = report.readme(_faster(), "before\n<!-- benchmarks -->\nold\n<!-- /benchmarks -->\nafter\n")
    assert text.startswith("before\n<!-- benchmarks -->\nThe [benchmarks]")
    assert text.endswith("<!-- /benchmarks -->\nafter\n")
    assert "In 4 comparisons with the best of the other systems, lbctl performs better in 4 and worse in 0" in text
    row = next(line for line in text.splitlines() if line.startswith("| Mixed GPUs, load 50 % | TTFT p99 | "))
    assert row.endswith("(smg, cache_aware) | better |")
    equal = report.readme(_faster([0.8, 1.3, 0.7, 1.2, 1.0]), "<!-- benchmarks -->\n<!-- /benchmarks -->")
    assert "(smg, cache_aware) | not measurably different |" in equal
    with pytest.raises(ValueError, match="does not contain"):
        report.readme(_faster(), "no marks")

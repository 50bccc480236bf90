"""docs/develop/benchmarks.md has the format that `make bench-peers` writes: losses, wins, failures, and missing
runs."""

from __future__ import annotations

import re
from dataclasses import replace

from tests.benchmarks.peers import cases, report, systems
from tests.benchmarks.peers.trial import Result
from tests.support.paths import ROOT

_RESULT = Result(
    first_p50=0.2, first_p99=2.0, whole_p50=3.0, whole_p99=9.0, share_error=0.1, failed=0.0, hits=0.5, data_path=1.0,
    control=0.0, reasons={}, load=1.0, late=0.01, clients=0.1, engines=0.1,
)  # fmt: skip
_OWN, _PEER = "lbctl pick, envoy", "nginx, least_conn"


def page_with(own: list[Result], peer: list[Result], repetitions: int = 1) -> str:
    return report.page([(cases.MIXED, {_PEER: peer, _OWN: own})], {"nginx": "1.22.1"}, "make it", 30, repetitions)


def _section(text: str, title: str) -> str:
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_page_has_every_system_or_lists_it_as_not_run() -> None:
    text = (ROOT / "docs" / "develop" / "benchmarks.md").read_text()
    empty = [(case, {system.name: [] for system in systems.of(case)}) for case in cases.CASES]
    headings = re.findall("^## .*", report.page(empty, {}, "make it", 30, 3), re.M)
    assert re.findall("^## .*", text, re.M) == headings
    not_run = text.partition("**Not run, or run less often:** ")[2].partition("\n\n")[0]
    for case, group in empty:
        section = _section(text, case.name[0].upper() + case.name[1:])
        assert case.description in section
        for system in group:
            is_listed = f"{case.name}: all (0 of" in not_run or f"{system} (0 of" in not_run
            assert f"\n| {system} | " in section or is_listed


def test_loss_and_win_are_shown_with_both_figures() -> None:
    text = page_with([replace(_RESULT, first_p99=3.0)], [replace(_RESULT, whole_p50=6.0)])
    assert f"mixed 5:2:1, pick: TTFT p99 3.00 ({_OWN}) against 2.00 ({_PEER})." in _section(text, "Where lbctl loses")
    assert f"mixed 5:2:1, pick: whole p50 3.0 ({_OWN}) against 6.0 ({_PEER})." in _section(text, "Where lbctl wins")


def test_difference_within_the_repetitions_is_neither() -> None:
    text = page_with([replace(_RESULT, first_p99=each) for each in (1.9, 3.0, 4.0)], [_RESULT] * 3, 3)
    assert "Nowhere" in _section(text, "Where lbctl loses")
    assert f"| {_OWN} | 0.20 | 3.00 (1.90–4.00) | 3.0 |" in text


def test_failures_and_a_busy_machine_are_reported() -> None:
    text = page_with([replace(_RESULT, failed=0.02, reasons={"502": 4}, load=3.0)], [_RESULT])
    assert f"failed 2.00 ({_OWN}) against 0.00 ({_PEER})" in _section(text, "Where lbctl loses")
    assert f"Why requests failed: {_OWN}: 4 × 502." in text
    assert "including this benchmark: 3.0 (busy)." in text


def test_missing_runs_are_listed() -> None:
    assert "Not run" not in page_with([_RESULT] * 2, [_RESULT] * 2, 2)
    assert f"often:** mixed 5:2:1: {_PEER} (1 of 2), {_OWN} (0 of 2)." in page_with([], [_RESULT], 2)
    assert "often:** mixed 5:2:1: all (1 of 2)." in page_with([_RESULT], [_RESULT], 2)

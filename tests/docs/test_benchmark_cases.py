"""The cases, systems and results of the benchmarks are complete for their page."""

from __future__ import annotations

import pytest

from tests.benchmarks.peers import cases, report, systems
from tests.benchmarks.peers.cases import Case
from tests.benchmarks.peers.charts import Bar, Panel, chart
from tests.benchmarks.peers.intervals import MAX_SEEDS, Interval
from tests.benchmarks.peers.panels import COST_CASES, panels
from tests.benchmarks.peers.results import Results
from tests.benchmarks.peers.table import FAILURE_CASES, charted, table
from tests.benchmarks.peers.verdicts import reasons


def test_every_loss_has_a_reason_and_every_reason_a_loss() -> None:
    compared = table(Results.read(report.RESULTS)).comparisons()
    losses = {(each.case, each.mode, each.figure.name) for each in compared if each.verdict == "worse"}
    assert losses == reasons().keys(), "see tests/benchmarks/peers/reasons.yaml"


def test_page_names_cases_that_exist() -> None:
    named = {*COST_CASES, *FAILURE_CASES, *(name for name, _ in report.HEADLINES)}
    assert named - {case.name for case in cases.CASES} == set()
    assert {case.group for case in cases.CASES} == cases.GROUPS.keys()


def test_seeds_are_few_enough_for_the_intervals() -> None:
    assert table(Results({})).seeds <= MAX_SEEDS


def test_every_panel_has_a_bar() -> None:
    for each in (panel for group in panels(table(Results.read(report.RESULTS))).values() for panel in group):
        assert any(bar.value.middle for bar in each.bars), each.title


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_chart_has_space_for_the_texts_of_a_case(case: Case) -> None:
    value = Interval(1.0, 1.0, 1.0)
    bars = [Bar(each.name.partition(",")[0], value, "0.001 s") for each in systems.of(case)]
    assert chart([Panel(f"{case.title}: {charted(case).title}", bars)]).startswith("<svg ")


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_case_compares_each_recommended_mode_with_others(case: Case) -> None:
    assert {each.mode for each in systems.of(case)} == {"", *case.modes}
    assert all(each.settings.endswith(".") for each in systems.of(case))

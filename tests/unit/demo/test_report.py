"""The report of a demo run."""

from __future__ import annotations

import pytest

from lbctl.demo.fleet import STRATEGIES
from lbctl.demo.report import DemoReport, GroupFigures, as_json, as_text, summary, usual_lateness


def test_summary_compares_the_groups_in_one_sentence() -> None:
    groups = {
        name: GroupFigures(1000, 0, share, 0.1, 5.0, {})
        for name, share in (("adaptive", 0.031), ("static", 0.085), ("round-robin", 0.2))
    }
    assert summary(groups) == (
        "Failed or waited more than 1 s for the first token: 3.1 % of the requests with lbctl serve, "
        "8.5 % with static weights, 20.0 % with round robin."
    )


@pytest.mark.parametrize(("late", "warns"), [(0.02, False), (0.25, False), (0.9, True)])
def test_report_of_a_busy_machine_begins_with_a_warning(late: float, *, warns: bool) -> None:
    groups = {name: GroupFigures(1000, 0, 0.1, 0.1, 5.0, {}) for name in STRATEGIES}
    run = DemoReport("envoy 1.40.0", 60.0, groups, [], [], {}, 0.0, late)
    assert as_json(run)["event_loop_late_seconds_p99"] == late
    begins = as_text(run).startswith("Warning: the figures may not be meaningful, because this machine was too busy")
    assert begins is warns


@pytest.mark.parametrize(
    ("late", "expected"),
    [([], 0.0), ([0.3], 0.3), ([0.9] * 3 + [0.01] * 57, 0.01), ([0.9] * 4 + [0.01] * 56, 0.9)],
)
def test_short_delays_do_not_count_as_a_busy_machine(late: list[float], expected: float) -> None:
    assert usual_lateness(late) == expected

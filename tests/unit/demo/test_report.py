"""The report of a demo run."""

from __future__ import annotations

from lbctl.demo.report import GroupFigures, summary


def test_summary_compares_the_groups_in_one_sentence() -> None:
    groups = {
        name: GroupFigures(1000, 0, share, 0.1, 5.0, {})
        for name, share in (("adaptive", 0.031), ("static", 0.085), ("round-robin", 0.2))
    }
    assert summary(groups) == (
        "Failed or waited more than 1 s for the first token: 3.1 % of the requests with lbctl serve, "
        "8.5 % with static weights, 20.0 % with round robin."
    )

"""A report arrives as it was sent."""

from __future__ import annotations

import pytest

from lbctl.pick.lengths import Factors
from lbctl.picker import reports, wire
from lbctl.picker.reports import PickerReport
from lbctl.picker.statistics import DecisionSample, DurationHistogram, QueueStatistics


def test_report_passes_the_link_unchanged() -> None:
    times = DurationHistogram()
    times.add(0.002)
    sample = DecisionSample(1.5, "chat", None, "full", 0.001, True, 3, 12.5, "edge")
    queue = QueueStatistics({"high": 1, "normal": 2, "low": 0}, refused_full=3, refused_late=4, left=5)
    queue.released(0.3, "acme")
    sent = PickerReport(
        (("chat", "score", 2),), {"chat": times}, {"chat": 5}, {"chat": 1}, 3, {"chat": 3}, {"chat": {"a": 900}}, 1,
        (sample,), "", {"chat": Factors(0.97, 0.89, 1.37, 1.0)}, {"chat": queue}, {"chat": {"acme": 3}},
        {"chat": ["a", "b"]},
    )  # fmt: skip
    assert reports.report_of(wire.parse(reports.line(sent))) == sent


def test_line_of_a_report_has_the_order_of_earlier_versions() -> None:
    assert reports.line(PickerReport(reasons=(("chat", "score", 2),))) == (
        b'{"kind":"report","reasons":[["chat","score",2]],"times":{},"finished":{},"lost":{},"open":0,'
        b'"open_by_pool":{},"expected_cached":{},"sampled":0,"samples":[],"unsaved":"","factors":{},"queues":{},'
        b'"waiting_tenants":{},"stalled":{}}\n'
    )


@pytest.mark.parametrize("values", [{}, {"reasons": 1}, {"reasons": [["chat"]], "times": []}])
def test_incomplete_report_is_rejected(values: dict[str, object]) -> None:
    with pytest.raises(wire.WireError, match="a report is not in the format of this version"):
        reports.report_of(values)

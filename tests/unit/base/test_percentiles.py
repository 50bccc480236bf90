"""Percentiles are values of the sample, by the nearest rank."""

from __future__ import annotations

from lbctl.base.percentiles import percentile_of


def test_a_percentile_is_a_value_by_nearest_rank() -> None:
    hundred = [float(each) for each in range(100, 0, -1)]
    assert [percentile_of(hundred, each) for each in (0, 1, 50, 95, 99, 99.5, 100)] == [1, 1, 50, 95, 99, 100, 100]
    assert [percentile_of([1.0, 2.0, 3.0, 4.0], each) for each in (25, 50, 51, 75, 99)] == [1, 2, 3, 3, 4]
    assert (percentile_of([7.0], 50), percentile_of([], 99)) == (7, 0)

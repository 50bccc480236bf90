"""The intervals of the benchmarks: they contain the truth as often as they promise."""

from __future__ import annotations

import random

import pytest

from tests.benchmarks.peers.intervals import Interval, difference, mean_of, percentile


def test_mean_of_five_seeds_uses_students_t() -> None:
    interval = mean_of([1.0, 2.0, 3.0, 4.0, 5.0])
    assert interval.middle == 3.0
    assert (interval.low, interval.high) == pytest.approx((3 - 1.963, 3 + 1.963), abs=0.001)


def test_pairs_show_a_difference_that_the_seeds_hide() -> None:
    theirs = [1.0, 2.0, 3.0, 4.0, 5.0]
    ours = [0.91, 1.89, 2.9, 3.92, 4.9]
    assert difference(ours, theirs).high < 0
    assert mean_of(ours).high > mean_of(theirs).low


def test_equal_values_do_not_differ() -> None:
    assert not difference([0.0] * 5, [0.0] * 5).excludes_zero
    assert not difference([1.0, 2.0, 3.0], [2.0, 1.0, 3.0]).excludes_zero


def test_percentile_of_few_values_has_the_largest_as_its_end() -> None:
    assert percentile([3.0, 2.0, 1.0], 3, 50) == Interval(1.0, 2.0, 3.0)
    assert percentile([7.0], 1, 99) == Interval(7.0, 7.0, 7.0)


def test_intervals_of_p99_contain_the_true_one_in_95_percent() -> None:
    rng, found = random.Random(1), 0
    for _ in range(400):
        values = sorted((rng.random() for _ in range(2000)), reverse=True)
        interval = percentile(values[:200], 2000, 99)
        found += interval.low <= 0.99 <= interval.high
    assert 0.93 <= found / 400 <= 0.98

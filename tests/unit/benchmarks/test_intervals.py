"""The intervals of the benchmarks: they contain the truth as often as they promise."""

from __future__ import annotations

import random

import pytest

from tests.benchmarks.peers.intervals import difference, mean_of


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


def test_intervals_contain_the_true_mean_in_95_percent() -> None:
    rng = random.Random(1)
    intervals = [mean_of([rng.gauss(0.3, 0.1) for _ in range(5)]) for _ in range(1000)]
    assert 0.93 <= sum(each.low <= 0.3 <= each.high for each in intervals) / 1000 <= 0.97

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lbctl.targets.replica_weights import quantise, rounding_error

CAPACITIES = st.lists(
    st.integers(1, 10**12).map(lambda millionths: millionths / 10**6) | st.floats(1e-6, 1e6), min_size=1, max_size=40
)
MAXIMA = st.sampled_from([100, 256, 65535, 2**32 - 1])


@pytest.mark.parametrize(
    ("shares", "maximum", "weights"),
    [
        ([], 256, []),
        ([7.5], 256, [100]),
        ([1, 1, 1], 256, [100, 100, 100]),
        ([5, 5, 2, 2], 256, [100, 100, 40, 40]),
        ([95, 5], 256, [95, 5]),
        ([11, 5, 0.8], 256, [55, 25, 4]),
        ([256, 1], 256, [256, 1]),
        ([1000, 1], 256, [256, 1]),
    ],
)
def test_weights_by_example(shares: list[float], maximum: int, weights: list[int]) -> None:
    assert quantise(shares, maximum) == weights


@given(CAPACITIES, MAXIMA)
def test_weights_are_within_the_range_of_the_proxy(shares: list[float], maximum: int) -> None:
    weights = quantise(shares, maximum)
    assert len(weights) == len(shares)
    assert all(type(weight) is int and 1 <= weight <= maximum for weight in weights)


@given(st.lists(st.integers(1, 256), min_size=1, max_size=20), st.sampled_from([1, 0.1, 0.25, 1000]))
def test_exact_ratios_stay_exact(ratios: list[int], unit: float) -> None:
    shares = [round(ratio * unit, 6) for ratio in ratios]
    weights = quantise(shares, 256)
    assert all(weight * ratios[0] == weights[0] * ratio for weight, ratio in zip(weights, ratios, strict=True))
    assert max(rounding_error(shares, weights)) < 1e-9


@given(CAPACITIES, MAXIMA)
@example([2.5e-05, 5.8e-05, 2.162655], 65535)
def test_weights_are_within_one_of_the_ideal(shares: list[float], maximum: int) -> None:
    weights = quantise(shares, maximum)
    scale = max(weights) / max(shares)
    assert all(
        abs(weight - share * scale) <= 1 + 1e-6 or weight == 1 for weight, share in zip(weights, shares, strict=True)
    )


@given(CAPACITIES, MAXIMA)
def test_more_capacity_never_has_less_weight(shares: list[float], maximum: int) -> None:
    ordered = sorted(set(shares))
    weights = quantise(ordered, maximum)
    assert weights == sorted(weights)


@given(CAPACITIES, MAXIMA)
def test_order_of_replicas_changes_no_weight(shares: list[float], maximum: int) -> None:
    assert sorted(quantise(shares, maximum)) == sorted(quantise(shares[::-1], maximum))


def test_rounding_error_is_relative_to_the_share() -> None:
    assert rounding_error([1, 1], [1, 1]) == [0, 0]
    assert rounding_error([3, 1], [2, 1]) == pytest.approx([1 / 9, 1 / 3])

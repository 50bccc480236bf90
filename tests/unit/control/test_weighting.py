"""Each strategy by itself: what is known of the replicas in, multipliers of their capacities out."""

from __future__ import annotations

import math

import pytest

from lbctl.base.registry import UnknownName
from lbctl.control.weighting import STRATEGIES
from lbctl.control.weighting.curves import reference_time
from lbctl.control.weighting.strategy import Estimate, Proposal, Subject
from lbctl.ir.pools import Weighting
from lbctl.signals.derive import BatchEvidence, TokenEvidence
from tests.support.control import replica, seen

RULES = Weighting()
STALE = 15.0


def subjects(*speeds: float | None, at: float = 100.0, gpus: str = "") -> list[Subject]:
    found: list[Subject] = []
    for place, speed in enumerate(speeds):
        gpu = gpus[place] if gpus else "H"
        there = seen(at, speed=speed) if speed is not None else None
        found.append((replica(f"r{place}", gpu=gpu), (gpu, 1), there, Estimate(), there is not None))
    return found


def wished(name: str, found: list[Subject], now: float = 100.0, rules: Weighting = RULES) -> list[Proposal]:
    return STRATEGIES.get(name)(rules, found, STALE, now)


def multipliers(name: str, found: list[Subject]) -> list[float | None]:
    return [wish.multiplier for wish in wished(name, found)]


def test_an_unknown_strategy_is_named_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="adaptive"):
        STRATEGIES.get("adaptve")


def test_of_two_replicas_the_slow_one_is_the_odd_one() -> None:
    assert multipliers("adaptive", subjects(1.0, 0.5)) == [1.0, pytest.approx(0.5)]


def test_half_of_a_pool_may_be_slow_and_the_fast_ones_stay_where_they_are() -> None:
    assert multipliers("adaptive", subjects(1.0, 1.0, 0.5, 0.5)) == [1.0, 1.0, pytest.approx(0.5), pytest.approx(0.5)]


def test_what_all_share_is_invisible() -> None:
    assert multipliers("adaptive", subjects(0.3, 0.3, 0.3)) == [1.0, 1.0, 1.0]


def test_a_replica_without_evidence_has_no_wish_and_is_no_peer() -> None:
    assert multipliers("adaptive", subjects(1.0, None, 0.5)) == [1.0, None, pytest.approx(0.5)]


def test_a_whole_type_moves_only_beyond_the_wider_band() -> None:
    assert multipliers("adaptive", subjects(1.0, 1.0, 0.7, 0.7, gpus="HHTT")) == [1.0] * 4
    moved = multipliers("adaptive", subjects(1.0, 1.0, 0.6, 0.6, gpus="HHTT"))
    assert moved == [1.0, 1.0, pytest.approx(0.6), pytest.approx(0.6)]


def test_old_evidence_fades_with_the_smoothing() -> None:
    first = wished("adaptive", subjects(1.0, 1.0))
    later = [(*item[:3], wish.estimate, True) for item, wish in zip(subjects(1.0, 0.5, at=120.0), first, strict=True)]
    slow = wished("adaptive", later, now=120.0)[1]
    keep = math.exp(-1)
    assert slow.signal == pytest.approx((keep + 1) / (keep + 2) / first[0].estimate.took * first[0].estimate.expected)


def test_the_same_evidence_counts_once() -> None:
    once = wished("adaptive", subjects(1.0, 0.5))
    again = wished(
        "adaptive", [(*item[:3], wish.estimate, True) for item, wish in zip(subjects(1.0, 0.5), once, strict=True)]
    )
    assert [wish.estimate.total for wish in again] == [wish.estimate.total for wish in once]


def test_a_handful_of_tokens_is_no_evidence() -> None:
    few = [(*item[:2], seen(100.0, speed=1.0, tokens=10.0), Estimate(), True) for item in subjects(1.0, 1.0)]
    assert multipliers("adaptive", few) == [None, None]


def test_the_curves_know_that_a_larger_batch_takes_longer() -> None:
    small, large = (reference_time(TokenEvidence(0.0, 1.0, 1.0, batch, 0.0))[0] for batch in (1.0, 100.0))
    assert large / small == pytest.approx((29.8 + 20.2) / (29.8 + 0.202))
    one, eight = (reference_time(BatchEvidence(0.0, 1.0, 1.0, items))[0] for items in (1.0, 8.0))
    assert eight / one == pytest.approx(2.6 / 1.2)


def test_composite_leaves_equals_at_their_capacity_and_absent_signals_out() -> None:
    same = [(*item[:2], seen(100.0, gpu=0.7, queue=3.0), Estimate(), True) for item in subjects(1.0, 1.0)]
    assert multipliers("composite", same) == [1.0, 1.0]
    one = [
        (*item[:2], seen(100.0, **{name: 0.5}), Estimate(), True)
        for item, name in zip(subjects(1.0, 1.0), ("gpu", "kv_cache"), strict=True)
    ]
    assert multipliers("composite", one) == [1.0, 1.0]
    none = [(*item[:2], seen(100.0), Estimate(), True) for item in subjects(1.0, 1.0)]
    assert multipliers("composite", none) == [None, None]

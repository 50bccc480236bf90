"""Each strategy by itself: what is known of the replicas in, multipliers of their capacities out."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from lbctl.base.registry import UnknownName
from lbctl.control.events import Observed
from lbctl.control.inputs import Observation
from lbctl.control.step import step
from lbctl.control.weighting import STRATEGIES
from lbctl.control.weighting.curves import reference_time
from lbctl.control.weighting.strategy import Estimate, Proposal, Subject
from lbctl.ir.pools import Weighting
from lbctl.signals.derive import BatchEvidence, TokenEvidence
from lbctl.signals.merge import Signal, Signals
from tests.support.control import pool, replica, seen, started

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


def decided(*looks: list[Subject], rules: Weighting = RULES) -> list[list[Proposal]]:
    """Five seconds apart, each with what the one before has learnt."""
    results: list[list[Proposal]] = []
    for number, look in enumerate(looks):
        before = [wish.estimate for wish in results[-1]] if results else [item[3] for item in look]
        known_before = [(*item[:3], estimate, item[4]) for item, estimate in zip(look, before, strict=True)]
        results.append(wished("adaptive", known_before, 100.0 + 5.0 * number, rules))
    return results


def _of_type(gpu: str, capacity: float, step: tuple[float, float, float], look: int, place: int) -> Subject:
    """A replica whose steps take a + b·n + p·q milliseconds, with other batches at each look."""
    n = 20.0 + 13.0 * ((look * 7 + place * 3) % 11)
    q = n * (4.0 + (look * 5 + place) % 5)
    at = 100.0 + 5.0 * look
    evidence = TokenEvidence(at, 500.0, 0.5 * (step[0] + step[1] * n + step[2] * q), n, q)
    observation = Observation(at, Signals({"kv_cache": Signal(n / 256, at, 0)}, {}, evidence, (), True))
    return replica(f"{gpu}{place}", capacity=capacity, gpu=gpu), (gpu, 1), observation, Estimate(), True


_MEMORY_BOUND, _CORE_BOUND = (10.0, 0.05, 0.03), (8.6, 0.2, 0.18)
"""Of 8B models: the first as on an H100, the second as on an H20."""
_FULL = (10.0 + 256 * (0.05 + 6 * 0.03)) / (8.6 + 256 * (0.2 + 6 * 0.18))
"""What a full one of the second does, by one of the first."""


def _unlike(second: float, looks: int = 30) -> list[float | None]:
    """The last multipliers of two replicas each of two types, the second with this capacity."""
    types = (("H", 1.0, _MEMORY_BOUND), ("C", second, _CORE_BOUND))
    look = [[_of_type(*kind, number, place) for kind in types for place in range(2)] for number in range(looks)]
    return [wish.multiplier for wish in decided(*look)[-1]]


def test_types_of_unlike_balance_are_compared_by_what_a_full_engine_does() -> None:
    assert _unlike(_FULL) == [1.0] * 4
    assert _unlike(2 * _FULL) == [1.0, 1.0, pytest.approx(0.5, rel=0.05), pytest.approx(0.5, rel=0.05)]


def test_types_are_not_compared_before_their_own_steps_tell() -> None:
    assert _unlike(2 * _FULL, looks=8) == [1.0] * 4


def _slow_in_turn(turns: Sequence[int]) -> list[list[Proposal]]:
    """One of three replicas has a quarter of its speed in each second turn, of so many looks each."""
    slow = [number % 2 == 1 for number, looks in enumerate(turns) for _ in range(looks)]
    return decided(*(
        subjects(1.0, 1.0, 0.25 if each else 1.0, at=100.0 + 5.0 * number) for number, each in enumerate(slow)
    ))  # fmt: skip


def test_a_replica_whose_speed_comes_and_goes_is_held_at_its_capacity() -> None:
    looks = [look[2] for look in _slow_in_turn((4, 4, 4, 4, 4, 4))]
    assert min(wish.multiplier or 1.0 for wish in looks[4:8]) < 0.6
    assert [wish.multiplier for wish in looks[12:]] == [1.0] * 12
    assert "faster than a weight can follow" in looks[15].reason


def test_a_replica_that_stays_slow_is_followed() -> None:
    assert [look[2].multiplier for look in _slow_in_turn((4, 40))][-1] == pytest.approx(0.25, rel=0.01)


def test_a_replica_is_followed_again_when_its_speed_has_been_steady() -> None:
    assert [look[2].multiplier for look in _slow_in_turn((4, 4, 120, 40))][-1] == pytest.approx(0.25, rel=0.01)


def test_what_may_be_noise_of_the_samples_moves_nothing() -> None:
    rng = random.Random(3)
    noisy = [
        subjects(*(math.exp(rng.gauss(0, 0.3)) for _ in range(8)), at=100.0 + 5.0 * number) for number in range(200)
    ]
    moved = [wish.multiplier for look in decided(*noisy)[40:] for wish in look]
    assert sum(multiplier != 1.0 for multiplier in moved) < len(moved) / 50


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


@pytest.mark.parametrize("noise", [0.3, 0.5])
def test_noise_moves_no_weight_whether_reports_come_together_or_one_by_one(noise: float) -> None:
    together, one_by_one = (_acting(noise, each) for each in (False, True))
    assert together < 0.02
    assert one_by_one < 0.02


def _acting(noise: float, one_by_one: bool) -> float:
    """The part of the proposals that are not the capacity: eight equal replicas whose samples scatter so much."""
    own, state = random.Random(7), started(pool(replicas=8))
    names = [item.replica.name for item in state.pools["llama"].replicas]
    moved = decisions = 0
    for look in range(400):
        at = 1000.0 + 5.0 * look
        reports = {name: seen(at, speed=math.exp(own.gauss(0.0, noise)), progress=float(look)) for name in names}
        for group in [{name: reports[name]} for name in names] if one_by_one else [reports]:
            state, _ = step(state, Observed(at, "llama", group))
            proposals = [item.proposal.multiplier for item in state.pools["llama"].replicas]
            moved += sum(each not in (None, 1.0) for each in proposals)
            decisions += len(proposals)
    return moved / decisions

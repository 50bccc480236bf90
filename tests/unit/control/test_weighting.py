"""Each weighting strategy alone: observations of the replicas in, multipliers of their capacities out."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from lbctl.base.registry import UnknownName
from lbctl.control.events import Observed
from lbctl.control.inputs import Observation
from lbctl.control.step import step
from lbctl.control.weighting import STRATEGIES
from lbctl.control.weighting.curves import reference_time
from lbctl.control.weighting.strategy import Estimate, Proposal, Subject
from lbctl.ir.pools import Balance, PickPolicy, Pool
from lbctl.signals.derive import BatchEvidence, TokenEvidence
from lbctl.signals.merge import Signal, Signals
from tests.support.control import pool, replica, seen, started

POOL = pool(0)
PICKED = pool(0, balance=Balance(pick=PickPolicy(())))
STALE = 15.0


def subjects(*speeds: float | None, at: float = 100.0, gpus: str = "") -> list[Subject]:
    replicas: list[Subject] = []
    for place, speed in enumerate(speeds):
        gpu = gpus[place] if gpus else "H"
        there = seen(at, speed=speed) if speed is not None else None
        replicas.append((replica(f"r{place}", gpu=gpu), (gpu, 1), there, Estimate(), there is not None))
    return replicas


def proposals_of(name: str, replicas: list[Subject], now: float = 100.0, of_pool: Pool = POOL) -> list[Proposal]:
    return STRATEGIES.get(name)(of_pool, replicas, STALE, now)


def multipliers(name: str, replicas: list[Subject]) -> list[float | None]:
    return [proposal.multiplier for proposal in proposals_of(name, replicas)]


def test_an_unknown_strategy_suggests_the_nearest_name() -> None:
    with pytest.raises(UnknownName, match="adaptive"):
        STRATEGIES.get("adaptve")


def test_the_slower_of_two_replicas_gets_less() -> None:
    assert multipliers("adaptive", subjects(1.0, 0.4)) == [1.0, pytest.approx(0.4)]


def test_if_half_a_pool_is_slow_the_fast_half_keeps_its_weight() -> None:
    assert multipliers("adaptive", subjects(1.0, 1.0, 0.5, 0.5)) == [1.0, 1.0, pytest.approx(0.5), pytest.approx(0.5)]


def test_a_slowdown_of_all_replicas_changes_nothing() -> None:
    assert multipliers("adaptive", subjects(0.3, 0.3, 0.3)) == [1.0, 1.0, 1.0]


def test_a_replica_without_evidence_gets_no_proposal() -> None:
    assert multipliers("adaptive", subjects(1.0, None, 0.4)) == [1.0, None, pytest.approx(0.4)]


def proposals_over_time(*looks: list[Subject], of_pool: Pool = POOL, interval: float = 5.0) -> list[list[Proposal]]:
    """Return the proposals of looks that are `interval` seconds apart; each continues the estimates of the last one."""
    results: list[list[Proposal]] = []
    for number, look in enumerate(looks):
        before = [proposal.estimate for proposal in results[-1]] if results else [item[3] for item in look]
        known_before = [(*item[:3], estimate, item[4]) for item, estimate in zip(look, before, strict=True)]
        results.append(proposals_of("adaptive", known_before, 100.0 + interval * number, of_pool))
    return results


class GpuType(NamedTuple):
    """Two replicas of a type. A step with n sequences and q prompt tokens takes a + b·n + p·q milliseconds."""

    name: str
    step: tuple[float, float, float]
    capacity: float = 1.0
    prompts: float = 6.0
    """Mean number of prompt tokens per sequence."""
    noise: float = 0.0
    """Standard deviation of the logarithm of a step's measured time."""


def subject_of_type(kind: GpuType, look: int, place: int, at: float, rng: random.Random) -> Subject:
    """Return a replica of this type. Its batches differ from look to look."""
    n = 20.0 + 13.0 * ((look * 7 + place * 3) % 11)
    q = n * kind.prompts * (4.0 + (look * 5 + place) % 5) / 6.0
    a, b, p = kind.step
    seconds = 0.5 * (a + b * n + p * q) * math.exp(rng.gauss(0.0, kind.noise))
    return subject_with_evidence(kind, place, TokenEvidence(at, 500.0, seconds, n, q))


def subject_with_evidence(kind: GpuType, place: int, evidence: TokenEvidence) -> Subject:
    at, n = evidence.at, evidence.decode_tokens
    observation = Observation(at, Signals({"kv_cache": Signal(n / 256, at, 0)}, {}, evidence, (), True))
    name = f"{kind.name}{place}"
    return replica(name, capacity=kind.capacity, gpu=kind.name), (kind.name, 1), observation, Estimate(), True


_H100, _H20 = GpuType("H100", (10.0, 0.05, 0.03)), GpuType("H20", (8.6, 0.2, 0.18))
"""Step times of an 8B model."""


def share_of_h20(prompts: float) -> float:
    """Return the throughput of a full H20 relative to an H100, with this number of prompt tokens per sequence."""
    first, second = (a + 256 * (b + prompts * p) for a, b, p in (_H100.step, _H20.step))
    return first / second


def last_multipliers(
    *types: GpuType, looks: int = 30, interval: float = 5.0, of_pool: Pool = POOL
) -> list[float | None]:
    """Return the last multipliers of two replicas of each type."""
    rng = random.Random(1)
    look = [
        [subject_of_type(kind, number, place, 100.0 + interval * number, rng) for kind in types for place in (0, 1)]
        for number in range(looks)
    ]
    return [proposal.multiplier for proposal in proposals_over_time(*look, of_pool=of_pool, interval=interval)[-1]]


def test_different_gpu_types_are_compared_at_full_engines() -> None:
    capacity, half = share_of_h20(6.0), pytest.approx(0.5, rel=0.05)
    assert last_multipliers(_H100, _H20._replace(capacity=capacity)) == [1.0] * 4
    assert last_multipliers(_H100, _H20._replace(capacity=2 * capacity)) == [1.0, 1.0, half, half]


def test_gpu_types_are_not_compared_before_enough_steps() -> None:
    slow = _H20._replace(capacity=2 * share_of_h20(6.0))
    assert last_multipliers(_H100, slow, looks=8) == [1.0] * 4
    assert last_multipliers(_H100, slow, looks=40, interval=1.0) == [1.0] * 4


def test_picked_gpu_types_are_compared_at_the_mix_of_the_pool() -> None:
    """The picker sends long prompts to the fast type. Both generate equally many tokens, so the mix is 7.5."""
    fast, slow = _H100._replace(prompts=12.0), _H20._replace(prompts=3.0)
    capacity, half = share_of_h20(7.5), pytest.approx(0.5, rel=0.05)
    assert last_multipliers(fast, slow._replace(capacity=capacity), of_pool=PICKED) == [1.0] * 4
    assert last_multipliers(fast, slow._replace(capacity=2 * capacity), of_pool=PICKED) == [1.0, 1.0, half, half]


def five_seconds(kind: GpuType, look: int) -> TokenEvidence:
    """Return the steps of five seconds. Only every second look has prompts, which make each step longer."""
    n, (a, b, p) = 20.0 + 13.0 * (look * 7 % 11), kind.step
    q = 12.0 * n * (look % 2)
    return TokenEvidence(100.0 + 5.0 * look, 5000.0 / (a + b * n + p * q) * n, 5.0 * n, n, q)


def full_rate(kind: GpuType, steps: Sequence[TokenEvidence]) -> float:
    """Return the tokens per millisecond of a full engine at the mix of all tokens of these steps."""
    a, b, p = kind.step
    prompts = sum(item.prefill_tokens / item.decode_tokens * item.itl_count for item in steps)
    return 256 / (a + 256 * (b + p * prompts / sum(item.itl_count for item in steps)))


def test_gpu_types_are_compared_at_the_mix_of_their_tokens() -> None:
    """Steps with prompts are longer, so that they are fewer than the others."""
    fast, slow = ([five_seconds(kind, look) for look in range(30)] for kind in (_H100, _H20))
    configured = _H20._replace(capacity=2 * full_rate(_H20, slow) / full_rate(_H100, fast))
    looks = [
        [
            subject_with_evidence(kind, place, evidence)
            for kind, evidence in ((_H100, of_fast), (configured, of_slow))
            for place in (0, 1)
        ]
        for of_fast, of_slow in zip(fast, slow, strict=True)
    ]
    last = [proposal.multiplier for proposal in proposals_over_time(*looks)[-1]]
    assert last == [1.0, 1.0, *[pytest.approx(0.5, rel=0.05)] * 2]


def test_noise_in_the_fastest_type_moves_no_other_type() -> None:
    slow = _H20._replace(capacity=2.2 * share_of_h20(6.0))
    assert last_multipliers(_H100, slow)[2:] == [pytest.approx(1 / 2.2, rel=0.05)] * 2
    assert last_multipliers(_H100._replace(noise=0.3), slow) == [1.0] * 4


def proposals_for_a_flapping_replica(turns: Sequence[int]) -> list[list[Proposal]]:
    """Return the proposals for three replicas. The third has a quarter of its speed in every second turn; `turns` are
    the numbers of looks."""
    slow = [number % 2 == 1 for number, looks in enumerate(turns) for _ in range(looks)]
    return proposals_over_time(*(
        subjects(1.0, 1.0, 0.25 if each else 1.0, at=100.0 + 5.0 * number) for number, each in enumerate(slow)
    ))  # fmt: skip


def test_a_replica_with_flapping_speed_keeps_its_capacity() -> None:
    looks = [look[2] for look in proposals_for_a_flapping_replica((4, 4, 4, 4, 4, 4))]
    assert min(proposal.multiplier or 1.0 for proposal in looks[4:8]) < 0.6
    assert [proposal.multiplier for proposal in looks[12:]] == [1.0] * 12
    assert "faster than a weight can" in looks[15].reason


def test_the_weight_follows_a_replica_that_stays_slow() -> None:
    assert [look[2].multiplier for look in proposals_for_a_flapping_replica((4, 40))][-1] == pytest.approx(
        0.25, rel=0.01
    )


def test_the_weight_follows_again_after_a_steady_speed() -> None:
    assert [look[2].multiplier for look in proposals_for_a_flapping_replica((4, 4, 120, 40))][-1] == pytest.approx(
        0.25, rel=0.01
    )


def moved_by_noise(seed: int, looks: int, since: int, replicas: int = 8) -> float:
    """Return the share of proposals that move a weight of equal replicas with noisy samples."""
    rng = random.Random(seed)
    noisy = [
        subjects(*(math.exp(rng.gauss(0, 0.3)) for _ in range(replicas)), at=100.0 + 5.0 * number)
        for number in range(looks)
    ]
    multipliers = [proposal.multiplier for look in proposals_over_time(*noisy)[since:] for proposal in look]
    return sum(multiplier != 1.0 for multiplier in multipliers) / len(multipliers)


def test_noise_in_samples_moves_no_weight() -> None:
    assert moved_by_noise(seed=3, looks=200, since=40) < 0.02


def test_noise_after_a_start_moves_no_weight() -> None:
    assert statistics.fmean(moved_by_noise(seed, looks=30, since=0) for seed in range(12)) < 0.01


def test_the_noise_of_a_single_peer_moves_no_weight() -> None:
    moved = statistics.fmean(moved_by_noise(seed, looks=200, since=0, replicas=2) for seed in range(12))
    assert moved < 0.003


def test_first_samples_count_as_noisy() -> None:
    first, second = proposals_over_time(subjects(1.0, 1.0, 0.55), subjects(1.0, 1.0, 0.55, at=105.0))
    assert (first[2].multiplier, second[2].multiplier) == (1.0, pytest.approx(0.55))
    assert [proposal.reason for proposal in (*first[1:], second[2])] == [
        "as fast as its peers",
        "its speed differs from its peers' by no more than the noise",
        "its speed differs from its peers'",
    ]


def test_old_evidence_fades_with_the_smoothing() -> None:
    first = proposals_of("adaptive", subjects(1.0, 1.0))
    later = [
        (*item[:3], proposal.estimate, True) for item, proposal in zip(subjects(1.0, 0.5, at=120.0), first, strict=True)
    ]
    slow = proposals_of("adaptive", later, now=120.0)[1]
    keep = math.exp(-1)
    assert slow.signal == pytest.approx((keep + 1) / (keep + 2) / first[0].estimate.took * first[0].estimate.expected)


def test_the_same_evidence_counts_once() -> None:
    once = proposals_of("adaptive", subjects(1.0, 0.5))
    again = proposals_of(
        "adaptive",
        [(*item[:3], proposal.estimate, True) for item, proposal in zip(subjects(1.0, 0.5), once, strict=True)],
    )
    assert [proposal.estimate.total for proposal in again] == [proposal.estimate.total for proposal in once]


def test_a_handful_of_tokens_is_not_evidence() -> None:
    few = [(*item[:2], seen(100.0, speed=1.0, tokens=10.0), Estimate(), True) for item in subjects(1.0, 1.0)]
    assert multipliers("adaptive", few) == [None, None]


def test_reference_time_grows_with_the_batch() -> None:
    small, large = (reference_time(TokenEvidence(0.0, 1.0, 1.0, batch, 0.0))[0] for batch in (1.0, 100.0))
    assert large / small == pytest.approx((29.8 + 20.2) / (29.8 + 0.202))
    one, eight = (reference_time(BatchEvidence(0.0, 1.0, 1.0, items))[0] for items in (1.0, 8.0))
    assert eight / one == pytest.approx(2.6 / 1.2)


def test_composite_ignores_absent_signals() -> None:
    same = [(*item[:2], seen(100.0, gpu=0.7, queue=3.0), Estimate(), True) for item in subjects(1.0, 1.0)]
    assert multipliers("composite", same) == [1.0, 1.0]
    one = [
        (*item[:2], seen(100.0, **{name: 0.5}), Estimate(), True)
        for item, name in zip(subjects(1.0, 1.0), ("gpu", "kv_cache"), strict=True)
    ]
    assert multipliers("composite", one) == [1.0, 1.0]
    none = [(*item[:2], seen(100.0), Estimate(), True) for item in subjects(1.0, 1.0)]
    assert multipliers("composite", none) == [None, None]


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.3, 0.5])
def test_noise_moves_no_weight_however_reports_are_grouped(noise: float) -> None:
    together, one_by_one = (share_of_moved_weights(noise, each) for each in (False, True))
    assert together < 0.02
    assert one_by_one < 0.02


def share_of_moved_weights(noise: float, one_by_one: bool) -> float:
    """Return the share of proposals that change a weight, for eight equal replicas with noisy samples."""
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

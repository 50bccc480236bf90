"""Capacity × measured speed: the speed of a replica at its current batch size, relative to replicas with the same GPU.

Queues and latency depend on the weight, so a control law based on them would be a feedback loop with a delay. Speed at
a known batch size hardly depends on the weight, so this law is feed-forward and does not oscillate when samples are
old. It does not react within its bands, to noise in the samples, or to a difference that all replicas share. It ignores
replicas without evidence, and replicas whose speed changes faster than a weight can. To compare GPU types, it needs
samples that predict the speed of a full engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from lbctl.control.inputs import NEVER, Observation
from lbctl.control.weighting.curves import reference_time
from lbctl.control.weighting.step_times import Sums, prompt_share, throughput, total, with_sample
from lbctl.control.weighting.strategy import (
    WHOLE,
    Estimate,
    MultiplierParts,
    Peers,
    Proposal,
    Subject,
    Unsteady,
    new_tuple,
)
from lbctl.ir.pools import Pool, Weighting
from lbctl.signals.derive import Evidence

MIN_COUNT = 20.0
"""Minimum number of tokens, or executions, for an estimate."""
_NOISE = 4.0
"""Number of standard errors that an estimate's band covers."""
_MEMORY = 10.0
"""Number of smoothing times after which the weight of a turn has decayed to 1/e."""
_STEADY = 0.85
"""Noise is not tracked while each sample's speed differs from the speed so far by less than this factor."""
_SHORT = 2.5
"""How much faster than `smoothing` the speed over the last few samples adapts."""
_LEFT, _BACK = 1.6, 0.5
"""Distances from the peers' speed, in bands, at which a replica counts as different and at which it counts as equal
again."""
_NOISE_MEMORY = 3.0
"""Number of smoothing times after which the weight of a noise sample has decayed to 1/e."""
_TURNS, _CALM = 1.5, 1.0
"""A replica whose speed has turned more often than the first number is held at its capacity until its turns drop below
the second."""
_FEW, _SMALL = 0.05, 0.01
"""Number of turns and variance below which a replica counts as steady again."""
_FIRST_VARIANCE, _CHANGED_VARIANCE = 0.02, 0.05
"""Assumed variance of a first sample, so that only a factor of 1.8 or more changes a weight; and minimum variance after
a sample that differs from the speed so far."""
_CLIPPED, _CLIPPED_MEAN, _LEAST_VARIANCE = 3.0, 0.8, 4e-4
"""A change counts as at most three variances, so that a sudden slow-down is not mistaken for noise; and the mean square
of a normal variable of variance 1 after this clipping."""
_ACTS = "its speed differs from its peers'"
_WITH_PEERS = "as fast as its peers"
_TURNS_TOO_OFTEN = "its speed changes faster than a weight can: its capacity is used"
_Key = tuple["type[Evidence] | None", Peers]
_Measured = tuple[Estimate, float, "_Group | None"]
"""(estimate, speed per capacity, the peers that it is compared with: None without fresh evidence)"""


class _Group:
    """Replicas that are compared with each other."""

    __slots__ = (
        "across", "across_error", "capacities", "error", "full", "per_capacity", "ratios", "speed", "speeds", "sums",
    )  # fmt: skip

    def __init__(self) -> None:
        self.ratios: list[float] = []
        """The speeds of its replicas, per capacity."""
        self.speeds: list[float] = []
        """Their speeds."""
        self.capacities: list[float] = []
        """The capacities of the replicas that have `sums`."""
        self.sums: list[Sums] = []
        """The steps of the replicas that are as fast as the others."""
        self.per_capacity = self.speed = 1.0
        """The upper medians of `ratios` and `speeds`."""
        self.full = 0.0
        """Tokens per second and capacity that a full replica generates; 0 if unknown."""
        self.error = 0.0
        """The standard error of the natural logarithm of `full`."""
        self.across = 0.0
        """The natural logarithm of `full` relative to `full` of all replicas."""
        self.across_error = 0.0
        """The standard error of `across`."""

    def fit(self, steps: Sums, share: float | None) -> None:
        """Determine the medians, and a full replica's throughput with this share of prompt tokens."""
        self.per_capacity, self.speed = _upper_median(self.ratios), _upper_median(self.speeds)
        fitted = throughput(steps, share)
        if fitted is not None:
            self.full, self.error = fitted.rate / _upper_median(self.capacities), fitted.error

    def compare(self, reference: _Group) -> None:
        """Compare a full replica's throughput with another group's."""
        self.across, self.across_error = math.log(self.full / reference.full), math.hypot(self.error, reference.error)


class _Bands(NamedTuple):
    """Deviations that cause no action, as natural logarithms; `smoothing` is in seconds."""

    above: float
    below: float
    types: float
    smoothing: float

    @classmethod
    def of(cls, rules: Weighting) -> _Bands:
        """The bands for these rules."""
        return cls(rules.act_above / 100, rules.release_below / 100, rules.across_types / 100, rules.smoothing / 1000)


def adaptive(pool: Pool, subjects: Sequence[Subject], stale: float, now: float) -> list[Proposal]:
    """Propose weights in proportion to the measured speed, relative to peers and to other GPU types."""
    measured = _measured(pool, subjects, now - stale)
    bands = _Bands.of(pool.weighting)
    above, types = bands.above, bands.types
    proposals = []
    for (replica, _, observation, before, _), (estimate, ratio, group) in zip(subjects, measured, strict=True):
        if group is None:
            proposals.append(_without_evidence(observation, estimate))
            continue
        off, across = math.log(ratio / group.per_capacity), group.across
        calm = not (estimate.acting or estimate.across) and estimate.unsteady is None
        if calm and -above <= off <= above and -types <= across <= types:
            proposals.append(new_tuple(Proposal, (estimate, 1.0, ratio, off, across, _WITH_PEERS, False, WHOLE)))
        else:
            elapsed = estimate.at - before.at if before.at > NEVER else 0.0
            proposals.append(_proposal(estimate, ratio, off, replica.capacity, group, bands, elapsed))
    return proposals


def _measured(pool: Pool, subjects: Sequence[Subject], oldest: float) -> list[_Measured]:
    """Group by kind of evidence and by peers: speeds in tokens and in batches are not comparable."""
    smoothing = pool.weighting.smoothing / 1000
    several = len({peers for _, peers, _, _, _ in subjects}) > 1
    measured: list[_Measured] = []
    groups: dict[_Key, _Group] = {}
    for replica, peers, observation, before, counts in subjects:
        estimate = _updated(observation, before, smoothing, several)
        expected, took, count, at, acting, _, kind, _, sums = estimate
        if not (counts and at >= oldest and count >= MIN_COUNT):
            measured.append((estimate, 0.0, None))
            continue
        group = groups.get((kind, peers))
        if group is None:
            group = groups[kind, peers] = _Group()
        capacity = replica.capacity
        ratio = expected / took / capacity
        group.ratios.append(ratio)
        group.speeds.append(ratio * capacity)
        if sums is not None and not acting:
            group.sums.append(sums)
            group.capacities.append(capacity)
        measured.append((estimate, ratio, group))
    for kind in {kind for kind, _ in groups}:
        _compare([group for key, group in groups.items() if key[0] is kind], is_picked=pool.balance.pick is not None)
    return measured


def _updated(observation: Observation | None, before: Estimate, smoothing: float, several: bool) -> Estimate:
    evidence = observation.signals.evidence if observation is not None else None
    if observation is None or evidence is None:
        return before
    before_expected, before_took, before_total, before_at, acting, across, before_kind, unsteady, sums = before
    at, kind = evidence.at, type(evidence)
    if at <= before_at:
        return before
    expected, took, count = reference_time(evidence)
    if several and count >= MIN_COUNT:
        usage = observation.signals.values.get("kv_cache")
        sums = with_sample(sums or Sums(), evidence, usage.value if usage is not None else None, at - before_at)
    if kind is before_kind:
        elapsed = (at - before_at) / smoothing
        if not _STEADY < expected / took * before_took / before_expected < 1 / _STEADY:
            mean = before_expected / before_took
            unsteady = unsteady or Unsteady(mean, mean, _CHANGED_VARIANCE)
            unsteady = unsteady._replace(variance=max(unsteady.variance, _CHANGED_VARIANCE))
        if unsteady is not None:
            unsteady = _with_speed(unsteady, expected / took, elapsed)
        keep = math.exp(-elapsed)
        expected, took, count = (
            before_expected * keep + expected,
            before_took * keep + took,
            before_total * keep + count,
        )
    else:
        unsteady = Unsteady(expected / took, expected / took, _FIRST_VARIANCE, samples=1.0)
    return new_tuple(Estimate, (expected, took, count, at, acting, across, kind, unsteady, sums))


def _with_speed(unsteady: Unsteady, speed: float, elapsed: float) -> Unsteady:
    """Include the speed of one sample; `elapsed` is in smoothing times."""
    last, short, variance, away, turns, held, _, samples = unsteady
    change = (speed - last) / (speed + last)
    change = min(2.0 * change * change, _CLIPPED * variance) / _CLIPPED_MEAN  # half the squared change of the logarithm
    variance = max(change + (variance - change) * math.exp(-elapsed / _NOISE_MEMORY), _LEAST_VARIANCE)
    short = speed + (short - speed) * math.exp(-elapsed * _SHORT)
    samples = samples * math.exp(-elapsed) + 1.0
    return Unsteady(speed, short, variance, away, turns, held, elapsed, samples)


def _noise(unsteady: Unsteady, faster: float = 1.0) -> float:
    """Return the deviation of the mean speed that noise can explain.

    `faster`: how much faster than `smoothing` the mean adapts. The gap is stored, because most decisions are made for
    other replicas and bring no new sample for this one.
    """
    keep = math.exp(-unsteady.gap * faster)
    newest = max(1.0 / unsteady.samples, 1.0 - keep)  # the share of the newest sample in the mean
    return _NOISE * math.sqrt(unsteady.variance * (2.0 * newest - 1.0 + keep) / (1.0 + keep))


def _compare(groups: Sequence[_Group], *, is_picked: bool) -> None:
    """Compare groups that have the same kind of evidence."""
    steps = [total(group.sums) if group.sums else Sums() for group in groups]
    share = prompt_share(steps) if is_picked else None
    for group, sums in zip(groups, steps, strict=True):
        group.fit(sums, share)
    by_full = sorted((group for group in groups if group.full for _ in group.ratios), key=attrgetter("full"))
    for group in groups:
        if group.full:
            group.compare(by_full[len(by_full) // 2])


def _upper_median(values: list[float]) -> float:
    """Return the upper median, so that the slower of two replicas counts as the outlier."""
    return sorted(values)[len(values) // 2]


def _proposal(
    estimate: Estimate, ratio: float, off: float, capacity: float, group: _Group, bands: _Bands, elapsed: float
) -> Proposal:
    across, unsteady, held, noise = group.across, estimate.unsteady, False, 0.0
    if unsteady is not None:
        unsteady = _with_turn(unsteady, math.log(unsteady.short / capacity / group.per_capacity), bands, elapsed)
        held, noise = unsteady.held, _noise(unsteady)
    band = bands.below if estimate.acting else max(bands.above, noise)
    outside = not -band <= off <= band
    between = bands.types * bands.below / bands.above if estimate.across else bands.types + 3.0 * group.across_error
    apart = not -between <= across <= between
    is_steady = unsteady is None or (not outside and _is_calm(unsteady))
    estimate = estimate._replace(acting=outside, across=apart, unsteady=None if is_steady else unsteady)
    acting = outside and not held
    if not acting and not apart:
        reason = _TURNS_TOO_OFTEN if outside else _WITH_PEERS
        return Proposal(estimate, 1.0, ratio, off, across, reason)
    evidence = (off if acting else 0.0) + (across if apart else 0.0)
    multiplier = math.exp(evidence)
    speed = ratio * capacity / group.speed if acting else 1.0
    return Proposal(
        estimate, multiplier, ratio, off, across, _ACTS, evidence < 0, MultiplierParts(speed, multiplier / speed)
    )


def _with_turn(unsteady: Unsteady, away_by: float, bands: _Bands, elapsed: float) -> Unsteady:
    """Count a turn if the replica has become slower than its peers, or as fast as its peers again."""
    if unsteady.away:
        away = away_by < -_BACK * bands.above
    else:
        away = away_by < -max(_LEFT * bands.above, _noise(unsteady, _SHORT))
    turns = unsteady.turns * math.exp(-elapsed / (_MEMORY * bands.smoothing)) + (away is not unsteady.away)
    held = turns > (_CALM if unsteady.held else _TURNS)
    return unsteady._replace(away=away, turns=turns, held=held)


def _is_calm(unsteady: Unsteady) -> bool:
    return not unsteady.away and unsteady.turns < _FEW and unsteady.variance < _SMALL


def _without_evidence(observation: Observation | None, estimate: Estimate) -> Proposal:
    if estimate.total or observation is None:
        return Proposal(estimate, None, reason="no fresh evidence for its speed")
    return Proposal(estimate, None, reason="its sources provide no evidence for its speed: its capacity is used")

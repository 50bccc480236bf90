"""Capacity × evidence of speed: how fast a replica works at its present batch, against replicas with the same GPU.

Queues and latency depend on the weight, and a law that follows them is a loop with a delay. Speed at a known batch
hardly depends on it: this law feeds forward, and does not oscillate with old samples. It refuses to act within its
bands, on replicas without evidence, and on a difference that all of them share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from lbctl.control.inputs import Observation
from lbctl.control.weighting.curves import reference_time
from lbctl.control.weighting.strategy import WHOLE, Estimate, Parts, Peers, Proposal, Subject, new_tuple
from lbctl.ir.pools import Weighting
from lbctl.signals.derive import Evidence

LEAST_COUNT = 20.0
"""The tokens, or executions, that an estimate needs at least."""
_ACTS = "its speed differs from its peers'"
_WITH_PEERS = "as fast as its peers"
_Key = tuple["type[Evidence] | None", Peers]
_Measured = tuple[Estimate, float, "_Group | None"]
"""(estimate, speed per capacity, the peers that it is compared with: None without fresh evidence)"""


class _Group:
    """Replicas that are compared with each other."""

    __slots__ = ("across", "per_capacity", "ratios", "speed", "speeds")

    def __init__(self) -> None:
        self.ratios: list[float] = []
        """Their speeds per capacity."""
        self.speeds: list[float] = []
        """Their speeds."""
        self.per_capacity = self.speed = 1.0
        """The upper medians of both."""
        self.across = 0.0
        """The natural logarithm of `per_capacity` relative to that of all replicas."""

    def compare(self, every: float) -> None:
        """Determine the medians, relative to the upper median of all replicas' speeds per capacity."""
        self.per_capacity, self.speed = _upper_median(self.ratios), _upper_median(self.speeds)
        self.across = math.log(self.per_capacity / every)


def adaptive(rules: Weighting, subjects: Sequence[Subject], stale: float, now: float) -> list[Proposal]:
    """Propose weights in proportion to the measured speed, relative to peers and to other types of GPU."""
    measured = _measured(rules, subjects, now - stale)
    bands = (rules.act_above / 100, rules.release_below / 100, rules.across_types / 100)
    above, _, types = bands
    proposals = []
    for (replica, _, observation, _, _), (estimate, ratio, group) in zip(subjects, measured, strict=True):
        if group is None:
            proposals.append(_without_evidence(observation, estimate))
            continue
        off, across = math.log(ratio / group.per_capacity), group.across
        if -above <= off <= above and -types <= across <= types and not (estimate.acting or estimate.across):
            proposals.append(new_tuple(Proposal, (estimate, 1.0, ratio, off, across, _WITH_PEERS, False, WHOLE)))
        else:
            proposals.append(_proposal(estimate, ratio, off, replica.capacity, group, bands))
    return proposals


def _measured(rules: Weighting, subjects: Sequence[Subject], oldest: float) -> list[_Measured]:
    """Group by kind of evidence and peers: speed in tokens is not comparable with speed in batches."""
    smoothing = rules.smoothing / 1000
    measured: list[_Measured] = []
    groups: dict[_Key, _Group] = {}
    for replica, peers, observation, before, counts in subjects:
        estimate = _updated(observation, before, smoothing)
        expected, took, total, at, _, _, kind = estimate
        if not (counts and at >= oldest and total >= LEAST_COUNT):
            measured.append((estimate, 0.0, None))
            continue
        group = groups.get((kind, peers))
        if group is None:
            group = groups[kind, peers] = _Group()
        capacity = replica.capacity
        ratio = expected / took / capacity
        group.ratios.append(ratio)
        group.speeds.append(ratio * capacity)
        measured.append((estimate, ratio, group))
    _compare(groups)
    return measured


def _updated(observation: Observation | None, before: Estimate, smoothing: float) -> Estimate:
    evidence = observation.signals.evidence if observation is not None else None
    if evidence is None:
        return before
    before_expected, before_took, before_total, before_at, acting, across, before_kind = before
    at, kind = evidence.at, type(evidence)
    if at <= before_at:
        return before
    expected, took, total = reference_time(evidence)
    if kind is before_kind:
        keep = math.exp((before_at - at) / smoothing)
        expected, took, total = (
            before_expected * keep + expected,
            before_took * keep + took,
            before_total * keep + total,
        )
    return new_tuple(Estimate, (expected, took, total, at, acting, across, kind))


def _compare(groups: Mapping[_Key, _Group]) -> None:
    """Compare each group with all that have the same kind of evidence."""
    kinds: dict[type[Evidence] | None, list[float]] = {}
    for (kind, _), group in groups.items():
        kinds.setdefault(kind, []).extend(group.ratios)
    every = {kind: _upper_median(ratios) for kind, ratios in kinds.items()}
    for (kind, _), group in groups.items():
        group.compare(every[kind])


def _upper_median(values: list[float]) -> float:
    """The larger of the two middle values of an even number: of two replicas, the slow one is the outlier."""
    return sorted(values)[len(values) // 2]


def _proposal(
    estimate: Estimate, ratio: float, off: float, capacity: float, group: _Group, bands: tuple[float, float, float]
) -> Proposal:
    above, below, types = bands
    across = group.across
    band = below if estimate.acting else above
    between = types * below / above if estimate.across else types
    acting, apart = not -band <= off <= band, not -between <= across <= between
    if acting is not estimate.acting or apart is not estimate.across:
        estimate = estimate._replace(acting=acting, across=apart)
    if not acting and not apart:
        return new_tuple(Proposal, (estimate, 1.0, ratio, off, across, _WITH_PEERS, False, WHOLE))
    evidence = (off if acting else 0.0) + (across if apart else 0.0)
    multiplier = math.exp(evidence)
    speed = ratio * capacity / group.speed if acting else 1.0
    return Proposal(estimate, multiplier, ratio, off, across, _ACTS, evidence < 0, Parts(speed, multiplier / speed))


def _without_evidence(observation: Observation | None, estimate: Estimate) -> Proposal:
    if estimate.total or observation is None:
        return Proposal(estimate, None, reason="no fresh evidence of its speed")
    return Proposal(estimate, None, reason="its sources have given no evidence of its speed: its capacity")

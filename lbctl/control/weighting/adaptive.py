"""Capacity × evidence of speed: how fast a replica works at its present batch, against replicas with the same GPU.

Queues and latency depend on the weight, and a law that follows them is a loop with a delay. Speed at a known batch
hardly depends on it: this law feeds forward, and does not oscillate with old samples. It refuses to act within its
bands, on replicas without evidence, and on a difference that all of them share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

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


class _Group(NamedTuple):
    """Replicas that are compared with each other."""

    per_capacity: float
    """The upper median of their speed per capacity."""
    across: float
    """The natural logarithm of `per_capacity` relative to that of all replicas."""
    speed: float
    """The upper median of their speed."""


def adaptive(rules: Weighting, subjects: Sequence[Subject], stale: float, now: float) -> list[Proposal]:
    """Propose weights in proportion to the measured speed, relative to peers and to other types of GPU."""
    smoothing, oldest = rules.smoothing / 1000, now - stale
    estimates = [_updated(observation, before, smoothing) for _, _, observation, before, _ in subjects]
    ratios = [
        estimate.expected / estimate.took / replica.capacity
        if counts and estimate.at >= oldest and estimate.total >= LEAST_COUNT
        else None
        for (replica, _, _, _, counts), estimate in zip(subjects, estimates, strict=True)
    ]
    groups = _groups(subjects, estimates, ratios)
    bands = (rules.act_above / 100, rules.release_below / 100, rules.across_types / 100)
    return [
        _proposal(estimate, ratio, replica.capacity, groups[estimate.kind, peers], bands)
        if ratio is not None
        else _without_evidence(observation, estimate)
        for (replica, peers, observation, _, _), estimate, ratio in zip(subjects, estimates, ratios, strict=True)
    ]


def _updated(observation: Observation | None, before: Estimate, smoothing: float) -> Estimate:
    evidence = observation.signals.evidence if observation is not None else None
    if evidence is None or evidence.at <= before.at:
        return before
    expected, seconds, count = reference_time(evidence)
    kind = type(evidence)
    keep = math.exp((before.at - evidence.at) / smoothing) if kind is before.kind else 0.0
    sums = before.expected * keep + expected, before.took * keep + seconds, before.total * keep + count
    return new_tuple(Estimate, (*sums, evidence.at, before.acting, before.across, kind))


def _groups(
    subjects: Sequence[Subject], estimates: Sequence[Estimate], ratios: Sequence[float | None]
) -> dict[_Key, _Group]:
    """Group by kind of evidence and peers: speed in tokens is not comparable with speed in batches."""
    members: dict[_Key, tuple[list[float], list[float]]] = {}
    for (replica, peers, _, _, _), estimate, ratio in zip(subjects, estimates, ratios, strict=True):
        if ratio is not None:
            key = estimate.kind, peers
            if key not in members:
                members[key] = [], []
            each, speeds = members[key]
            each.append(ratio)
            speeds.append(ratio * replica.capacity)
    kinds: dict[type[Evidence] | None, list[float]] = {}
    for (kind, _), (each, _) in members.items():
        kinds.setdefault(kind, []).extend(each)
    every = {kind: _upper_median(values) for kind, values in kinds.items()}
    return {key: _group(each, speeds, every[key[0]]) for key, (each, speeds) in members.items()}


def _group(ratios: list[float], speeds: list[float], every: float) -> _Group:
    median = _upper_median(ratios)
    return _Group(median, math.log(median / every), _upper_median(speeds))


def _upper_median(values: list[float]) -> float:
    """The larger of the two middle values of an even number: of two replicas, the slow one is the outlier."""
    return sorted(values)[len(values) // 2]


def _proposal(
    estimate: Estimate, ratio: float, capacity: float, group: _Group, bands: tuple[float, float, float]
) -> Proposal:
    above, below, types = bands
    off, across = math.log(ratio / group.per_capacity), group.across
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

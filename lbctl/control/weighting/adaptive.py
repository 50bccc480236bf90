"""Capacity × evidence of speed: how fast a replica works at its present batch, against replicas with the same GPU.

Queues and latency depend on the weight, and a law that follows them is a loop with a delay. Speed at a known batch
hardly depends on it: this law feeds forward, and does not oscillate with old samples. It refuses to act within its
bands, on replicas without evidence, and on a difference that all of them share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from lbctl.control.inputs import Seen
from lbctl.control.weighting.curves import read
from lbctl.control.weighting.strategy import WHOLE, Estimate, Parts, Peers, Subject, Wish, made
from lbctl.ir.pools import Weighting
from lbctl.signals.derive import Evidence

LEAST_COUNT = 20.0
"""Tokens, or executions, behind an estimate; with fewer there is none."""
_ACTS = "its speed differs from its peers'"
_WITH_PEERS = "as fast as its peers"
_Key = tuple["type[Evidence] | None", Peers]


class _Group(NamedTuple):
    """Who is compared with each other. `per_capacity`: the upper median of their speed per capacity, `across`: the
    logarithm of that against all, `speed`: the upper median of their speed."""

    per_capacity: float
    across: float
    speed: float


def adaptive(rules: Weighting, subjects: Sequence[Subject], stale: float, now: float) -> list[Wish]:
    smoothing, oldest = rules.smoothing / 1000, now - stale
    estimates = [_updated(seen, was, smoothing) for _, _, seen, was, _ in subjects]
    ratios = [
        known.expected / known.took / replica.capacity
        if counts and known.at >= oldest and known.total >= LEAST_COUNT
        else None
        for (replica, _, _, _, counts), known in zip(subjects, estimates, strict=True)
    ]
    groups = _groups(subjects, estimates, ratios)
    bands = (rules.act_above / 100, rules.release_below / 100, rules.across_types / 100)
    return [
        _wish(known, ratio, replica.capacity, groups[known.kind, peers], bands)
        if ratio is not None
        else _unknown(seen, known)
        for (replica, peers, seen, _, _), known, ratio in zip(subjects, estimates, ratios, strict=True)
    ]


def _updated(seen: Seen | None, was: Estimate, smoothing: float) -> Estimate:
    evidence = seen.signals.evidence if seen is not None else None
    if evidence is None or evidence.at <= was.at:
        return was
    expected, seconds, count = read(evidence)
    kind = type(evidence)
    keep = math.exp((was.at - evidence.at) / smoothing) if kind is was.kind else 0.0
    sums = was.expected * keep + expected, was.took * keep + seconds, was.total * keep + count
    return made(Estimate, (*sums, evidence.at, was.acting, was.across, kind))


def _groups(
    subjects: Sequence[Subject], estimates: Sequence[Estimate], ratios: Sequence[float | None]
) -> dict[_Key, _Group]:
    """What is counted in tokens is not compared with what is counted in batches."""
    members: dict[_Key, tuple[list[float], list[float]]] = {}
    for (replica, peers, _, _, _), known, ratio in zip(subjects, estimates, ratios, strict=True):
        if ratio is not None:
            key = known.kind, peers
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
    """Of an even number the larger of the two in the middle: of two replicas, the slow one is the odd one."""
    return sorted(values)[len(values) // 2]


def _wish(known: Estimate, ratio: float, capacity: float, group: _Group, bands: tuple[float, float, float]) -> Wish:
    above, below, types = bands
    off, across = math.log(ratio / group.per_capacity), group.across
    band = below if known.acting else above
    between = types * below / above if known.across else types
    acting, apart = not -band <= off <= band, not -between <= across <= between
    if acting is not known.acting or apart is not known.across:
        known = known._replace(acting=acting, across=apart)
    if not acting and not apart:
        return made(Wish, (known, 1.0, ratio, off, across, _WITH_PEERS, False, WHOLE))
    evidence = (off if acting else 0.0) + (across if apart else 0.0)
    multiplier = math.exp(evidence)
    speed = ratio * capacity / group.speed if acting else 1.0
    return Wish(known, multiplier, ratio, off, across, _ACTS, evidence < 0, Parts(speed, multiplier / speed))


def _unknown(seen: Seen | None, known: Estimate) -> Wish:
    if known.total or seen is None:
        return Wish(known, None, words="no fresh evidence of its speed")
    return Wish(known, None, words="its sources have given no evidence of its speed: its capacity")

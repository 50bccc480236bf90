"""Capacity × evidence of speed: how fast a replica works at its present batch, against replicas with the same GPU.

Queues and latency depend on the weight, and a law that follows them is a loop with a delay. Speed at a known batch
hardly depends on it: this law feeds forward, and does not oscillate with old samples. It refuses to act within its
bands, on replicas without evidence, and on a difference that all of them share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lbctl.control.inputs import Seen
from lbctl.control.weighting.curves import read
from lbctl.control.weighting.strategy import Estimate, Peers, Subject, Wish
from lbctl.ir.pools import Weighting
from lbctl.signals.derive import Evidence

LEAST_COUNT = 20.0
"""Tokens, or executions, behind an estimate; with fewer there is none."""
_ACTS = "its speed differs from its peers'"
_WITH_PEERS = "as fast as its peers"
_Group = tuple[Peers, "type[Evidence] | None"]


def adaptive(rules: Weighting, subjects: Sequence[Subject], stale: float, now: float) -> list[Wish]:
    smoothing, oldest = rules.smoothing / 1000, now - stale
    estimates = [_updated(seen, was, smoothing) for _, _, seen, was, _ in subjects]
    ratios = [
        known.expected / known.took / replica.capacity
        if counts and known.at >= oldest and known.total >= LEAST_COUNT
        else None
        for (replica, _, _, _, counts), known in zip(subjects, estimates, strict=True)
    ]
    medians = _medians(subjects, estimates, ratios)
    bands = (rules.act_above / 100, rules.release_below / 100, rules.across_types / 100)
    return [
        _wish(known, ratio, medians[peers, known.kind], bands) if ratio is not None else _unknown(seen, known)
        for (_, peers, seen, _, _), known, ratio in zip(subjects, estimates, ratios, strict=True)
    ]


def _updated(seen: Seen | None, was: Estimate, smoothing: float) -> Estimate:
    evidence = seen.signals.evidence if seen is not None else None
    if evidence is None or evidence.at <= was.at:
        return was
    expected, seconds, count = read(evidence)
    kind = type(evidence)
    keep = math.exp((was.at - evidence.at) / smoothing) if kind is was.kind else 0.0
    return Estimate(
        was.expected * keep + expected,
        was.took * keep + seconds,
        was.total * keep + count,
        evidence.at,
        was.acting,
        was.across,
        kind,
    )


def _medians(
    subjects: Sequence[Subject], estimates: Sequence[Estimate], ratios: Sequence[float | None]
) -> dict[_Group, tuple[float, float]]:
    """(the speed of each group, the logarithm of that against all): what is counted in tokens is not compared with what
    is counted in batches."""
    groups: dict[_Group, list[float]] = {}
    for (_, peers, _, _, _), known, ratio in zip(subjects, estimates, ratios, strict=True):
        if ratio is not None:
            groups.setdefault((peers, known.kind), []).append(ratio)
    kinds: dict[type[Evidence] | None, list[float]] = {}
    for (_, kind), values in groups.items():
        kinds.setdefault(kind, []).extend(values)
    every = {kind: _upper_median(values) for kind, values in kinds.items()}
    medians = {group: _upper_median(values) for group, values in groups.items()}
    return {group: (median, math.log(median / every[group[1]])) for group, median in medians.items()}


def _upper_median(values: list[float]) -> float:
    """Of an even number the larger of the two in the middle: of two replicas, the slow one is the odd one."""
    return sorted(values)[len(values) // 2]


def _wish(known: Estimate, ratio: float, group: tuple[float, float], bands: tuple[float, float, float]) -> Wish:
    median, across = group
    above, below, types = bands
    off = math.log(ratio / median)
    acting = abs(off) > (below if known.acting else above)
    apart = abs(across) > (types * below / above if known.across else types)
    if acting is not known.acting or apart is not known.across:
        known = known._replace(acting=acting, across=apart)
    if not acting and not apart:
        return Wish(known, 1.0, ratio, off, across, _WITH_PEERS, False)
    evidence = (off if acting else 0.0) + (across if apart else 0.0)
    return Wish(known, math.exp(evidence), ratio, off, across, _ACTS, evidence < 0)


def _unknown(seen: Seen | None, known: Estimate) -> Wish:
    if known.total or seen is None:
        return Wish(known, None, words="no fresh evidence of its speed")
    return Wish(known, None, words="its sources have given no evidence of its speed: its capacity")

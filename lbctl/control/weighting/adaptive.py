"""Capacity × evidence of speed: how fast a replica works at its present batch, against replicas with the same GPU.

Queues and latency depend on the weight, and a law that follows them is a loop with a delay. Speed at a known batch
hardly depends on it: this law feeds forward, and does not oscillate with old samples. It refuses to act within its
bands, on replicas without evidence, and on a difference that all of them share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lbctl.control.inputs import Evidence
from lbctl.control.weighting.curves import expected
from lbctl.control.weighting.strategy import Estimate, Subject, Wish
from lbctl.ir.pools import Weighting

LEAST_COUNT = 20.0
"""Tokens, or executions, behind an estimate; with fewer there is none."""
_ACTS = "its speed differs from its peers'"


def adaptive(rules: Weighting, subjects: Sequence[Subject], stale: float, now: float) -> list[Wish]:
    smoothing = rules.smoothing / 1000
    estimates = [_updated(item, smoothing) for item in subjects]
    ratios = [_ratio(item, known, now - stale) for item, known in zip(subjects, estimates, strict=True)]
    medians = _medians(subjects, ratios)
    every = _upper_median([ratio for ratio in ratios if ratio is not None])
    types = {peers: math.log(median / every) for peers, median in medians.items()}
    bands = (rules.act_above / 100, rules.release_below / 100, rules.across_types / 100)
    return [
        _unknown(item, known) if ratio is None else _wish(known, ratio, medians[item.peers], types[item.peers], bands)
        for item, known, ratio in zip(subjects, estimates, ratios, strict=True)
    ]


def _updated(subject: Subject, smoothing: float) -> Estimate:
    was, seen = subject.estimate, subject.seen
    evidence = seen.evidence if seen is not None else None
    if evidence is None or evidence.at <= was.at or not _says_something(evidence):
        return was
    keep = math.exp((was.at - evidence.at) / smoothing)
    return Estimate(
        was.expected * keep + expected(evidence),
        was.took * keep + evidence.seconds,
        was.count * keep + evidence.count,
        evidence.at,
        was.acting,
        was.across,
    )


def _says_something(evidence: Evidence) -> bool:
    return evidence.steps > 0 and evidence.count > 0 and evidence.seconds > 0


def _ratio(subject: Subject, known: Estimate, oldest: float) -> float | None:
    """Speed per capacity, of replicas that count."""
    if not subject.counts or known.at < oldest or known.count < LEAST_COUNT:
        return None
    return known.expected / known.took / subject.replica.capacity


def _medians(
    subjects: Sequence[Subject], ratios: Sequence[float | None]
) -> dict[tuple[str, int] | tuple[float], float]:
    groups: dict[tuple[str, int] | tuple[float], list[float]] = {}
    for item, ratio in zip(subjects, ratios, strict=True):
        if ratio is not None:
            groups.setdefault(item.peers, []).append(ratio)
    return {peers: _upper_median(group) for peers, group in groups.items()}


def _upper_median(values: list[float]) -> float:
    """Of an even number the larger of the two in the middle: of two replicas, the slow one is the odd one."""
    return sorted(values)[len(values) // 2] if values else 1.0


def _wish(known: Estimate, ratio: float, median: float, across: float, bands: tuple[float, float, float]) -> Wish:
    above, below, types = bands
    off = math.log(ratio / median)
    acting = abs(off) > (below if known.acting else above)
    apart = abs(across) > (types * below / above if known.across else types)
    if acting is not known.acting or apart is not known.across:
        known = known._replace(acting=acting, across=apart)
    if not acting and not apart:
        return Wish(known, 1.0, ratio, off, across, "as fast as its peers")
    evidence = (off if acting else 0.0) + (across if apart else 0.0)
    return Wish(known, math.exp(evidence), ratio, off, across, _ACTS, evidence < 0)


def _unknown(subject: Subject, known: Estimate) -> Wish:
    if known.count > 0 or subject.seen is None:
        return Wish(known, None, words="no fresh evidence of its speed")
    return Wish(known, None, words="its sources give no evidence of its speed: its capacity")

"""Weights based on a weighted score of load signals, where a higher load means a lower weight.

The linter warns about this strategy, because the score feeds back on itself.

Each signal is divided by its largest value in the pool, except that ratios are used unchanged. If a replica lacks a
signal, that signal's weight is distributed among the others. The multiplier is 1 minus the load, relative to the pool's
mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from lbctl.control.inputs import Observation
from lbctl.control.weighting.strategy import Estimate, Proposal, Subject
from lbctl.ir.pools import Pool

DEFAULT = (("gpu", 0.3), ("kv_cache", 0.2), ("queue", 0.4), ("ttft", 0.1))
_RATIOS = frozenset({"gpu", "kv_cache", "throttle"})
_MIN_LEFT = 0.05


def composite(pool: Pool, subjects: Sequence[Subject], stale: float, now: float) -> list[Proposal]:
    """Propose lower weights for replicas with higher load scores."""
    rules = pool.weighting
    terms = rules.composite or DEFAULT
    maxima = {name: _maximum(name, subjects, now - stale) for name, _ in terms}
    estimates = [
        _updated(observation, before, _load(observation, terms, maxima, now - stale), rules.smoothing / 1000)
        for _, _, observation, before, _ in subjects
    ]
    left = [
        max(1.0 - estimate.took, _MIN_LEFT) if counts and estimate.at >= now - stale else None
        for (_, _, _, _, counts), estimate in zip(subjects, estimates, strict=True)
    ]
    measured = [value for value in left if value is not None]
    mean = sum(measured) / len(measured) if measured else 1.0
    return [
        Proposal(estimate, None, reason="no fresh signal for its load")
        if value is None
        else Proposal(estimate, value / mean, estimate.took, math.log(value / mean))
        for estimate, value in zip(estimates, left, strict=True)
    ]


def _maximum(name: str, subjects: Sequence[Subject], oldest: float) -> float:
    if name in _RATIOS:
        return 1.0
    values = [_value(observation, name, oldest) for _, _, observation, _, _ in subjects]
    return max((value for value in values if value is not None), default=0.0) or 1.0


def _load(
    observation: Observation | None, terms: Sequence[tuple[str, float]], maxima: Mapping[str, float], oldest: float
) -> float | None:
    """The load, from 0 (idle) to 1 (the highest in the pool), or None if no signal is known."""
    values = [(weight, _value(observation, name, oldest), maxima[name]) for name, weight in terms]
    measured = [(weight, value / maximum) for weight, value, maximum in values if value is not None]
    total = sum(weight for weight, _ in measured)
    return sum(weight * value for weight, value in measured) / total if total else None


def _value(observation: Observation | None, name: str, oldest: float) -> float | None:
    signal = observation.signals.values.get(name) if observation is not None else None
    return signal.value if signal is not None and signal.at >= oldest else None


def _updated(observation: Observation | None, before: Estimate, load: float | None, smoothing: float) -> Estimate:
    if load is None or observation is None or observation.at <= before.at:
        return before
    keep = math.exp((before.at - observation.at) / smoothing)
    return Estimate(took=before.took * keep + load * (1.0 - keep), total=before.total + 1, at=observation.at)

"""The score that people know: the more of each signal, the less weight. lint warns of it: it follows what it causes.

A signal counts as its part of the largest value in the pool (a ratio as it is); signals that a replica lacks count with
the others' weights. The multiplier is what is left of 1, against the mean of the pool.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from lbctl.control.inputs import Seen
from lbctl.control.weighting.strategy import Estimate, Subject, Wish
from lbctl.ir.pools import Weighting

DEFAULT = (("gpu", 0.3), ("kv_cache", 0.2), ("queue", 0.4), ("ttft", 0.1))
_RATIOS = frozenset({"gpu", "kv_cache", "throttle"})
_LEAST_LEFT = 0.05


def composite(rules: Weighting, subjects: Sequence[Subject], stale: float, now: float) -> list[Wish]:
    terms = rules.composite or DEFAULT
    most = {name: _most(name, subjects, now - stale) for name, _ in terms}
    estimates = [
        _updated(seen, was, _load(seen, terms, most, now - stale), rules.smoothing / 1000)
        for _, _, seen, was, _ in subjects
    ]
    left = [
        max(1.0 - known.took, _LEAST_LEFT) if counts and known.at >= now - stale else None
        for (_, _, _, _, counts), known in zip(subjects, estimates, strict=True)
    ]
    there = [value for value in left if value is not None]
    mean = sum(there) / len(there) if there else 1.0
    return [
        Wish(known, None, words="no fresh signal of its load")
        if value is None
        else Wish(known, value / mean, known.took, math.log(value / mean))
        for known, value in zip(estimates, left, strict=True)
    ]


def _most(name: str, subjects: Sequence[Subject], oldest: float) -> float:
    if name in _RATIOS:
        return 1.0
    values = [_value(seen, name, oldest) for _, _, seen, _, _ in subjects]
    return max((value for value in values if value is not None), default=0.0) or 1.0


def _load(
    seen: Seen | None, terms: Sequence[tuple[str, float]], most: Mapping[str, float], oldest: float
) -> float | None:
    """0 idle … 1 the fullest; None where no signal is known."""
    known = [(weight, _value(seen, name, oldest), most[name]) for name, weight in terms]
    there = [(weight, value / top) for weight, value, top in known if value is not None]
    total = sum(weight for weight, _ in there)
    return sum(weight * value for weight, value in there) / total if total else None


def _value(seen: Seen | None, name: str, oldest: float) -> float | None:
    signal = seen.signals.values.get(name) if seen is not None else None
    return signal.value if signal is not None and signal.at >= oldest else None


def _updated(seen: Seen | None, was: Estimate, load: float | None, smoothing: float) -> Estimate:
    if load is None or seen is None or seen.at <= was.at:
        return was
    keep = math.exp((was.at - seen.at) / smoothing)
    return Estimate(took=was.took * keep + load * (1.0 - keep), total=was.total + 1, at=seen.at)

"""Capacity alone."""

from __future__ import annotations

from collections.abc import Sequence

from lbctl.control.weighting.strategy import Subject, Wish
from lbctl.ir.pools import Weighting


def static(_rules: Weighting, subjects: Sequence[Subject], _stale: float, _now: float) -> list[Wish]:
    return [Wish(estimate, 1.0, words="static: its capacity") for _, _, _, estimate, _ in subjects]

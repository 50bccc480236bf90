"""The `static` strategy, in which each replica's weight is its capacity."""

from __future__ import annotations

from collections.abc import Sequence

from lbctl.control.weighting.strategy import Proposal, Subject
from lbctl.ir.pools import Pool


def static(_pool: Pool, subjects: Sequence[Subject], _stale: float, _now: float) -> list[Proposal]:
    """Propose the capacity for each replica."""
    reason = "static weighting: its capacity is used"
    return [Proposal(estimate, 1.0, reason=reason) for _, _, _, estimate, _ in subjects]

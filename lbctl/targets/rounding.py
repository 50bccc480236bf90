"""The shares that whole weights could not hold, said of each replica (LB206)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.pools import Pool, Replica

_WORST = 0.02
"""A share may be off by so much of itself before anybody is told."""
_HINT = "capacities whose ratios fit the weights, or a pool of its own for what is so much smaller"


def rounded(kind: str, pool: Pool, replicas: Iterable[Replica], errors: Iterable[float]) -> Iterator[Diagnostic]:
    """`errors`: for each replica how far its share is off, relative to it; 0.02 is 2 %."""
    for replica, error in zip(replicas, errors, strict=True):
        if error > _WORST:
            message = f"{kind}'s weights are whole numbers: the share of this replica is off by {error:.0%}"
            path = ("pools", pool.name, "replicas", replica.name)
            yield Diagnostic("LB206", message, path=path, hint=_HINT, severity="warning")

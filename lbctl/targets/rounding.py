"""Warnings about replicas whose share whole weights cannot express (LB206)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.pools import Pool, Replica

_TOLERANCE = 0.02
"""The relative error of a share up to which there is no warning."""
_HINT = "capacities whose ratios fit the weights, or a separate pool for the much smaller replicas"


def rounded(kind: str, pool: Pool, replicas: Iterable[Replica], errors: Iterable[float]) -> Iterator[Diagnostic]:
    """Yield a warning for each replica whose share is off by more than 2 %.

    `errors` has the relative error of each replica's share, in the order of `replicas`; 0.02 is 2 %.
    """
    for replica, error in zip(replicas, errors, strict=True):
        if error > _TOLERANCE:
            message = f"{kind}'s weights are whole numbers: the share of this replica is off by {error:.0%}"
            path = ("pools", pool.name, "replicas", replica.name)
            yield Diagnostic("LB206", message, path=path, hint=_HINT, severity="warning")

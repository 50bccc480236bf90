"""The stability bound that no algorithm can exceed: Σλ < Σμ.

Lint rules and the simulation report load relative to this bound.
"""

from __future__ import annotations

from collections.abc import Iterable

BUSY = 0.8
"""Utilisation above which queues are long, because their length grows as 1 ÷ (1 − utilisation)."""
_TARGET = 0.7
"""Recommended utilisation."""


def utilisation(arriving: float, served: Iterable[float]) -> float:
    """Return Σλ ÷ Σμ. At 1 or above, queues grow without limit.

    `arriving` is in requests per second. `served` contains each replica's maximum rate, in requests per second. If the
    replicas cannot serve any requests, the load is infinite.
    """
    total = sum(served)
    return arriving / total if total else float("inf")


def advice(load: float) -> str:
    """Return advice on the factor by which to increase the number of replicas."""
    return f"{load / _TARGET:.1f} times as many replicas would be busy {100 * _TARGET:.0f} % of the time"

"""The bound that no algorithm lifts: Σλ < Σμ. Lint rules and the simulation state the load of a fleet by it."""

from __future__ import annotations

from collections.abc import Iterable

BUSY = 0.8
"""The utilisation from which on queues are long: they grow as 1 ÷ (1 − utilisation)."""
_TARGET = 0.7
"""The utilisation that is advised."""


def utilisation(arriving: float, served: Iterable[float]) -> float:
    """Return Σλ ÷ Σμ: at 1 and above queues grow without end.

    `arriving`: requests per second; `served`: the most that each replica answers in a second. Replicas that answer
    nothing are an infinite load.
    """
    total = sum(served)
    return arriving / total if total else float("inf")


def advice(load: float) -> str:
    """Return how many times the replicas the load needs."""
    return f"{load / _TARGET:.1f} times the replicas would be busy for {100 * _TARGET:.0f} %"

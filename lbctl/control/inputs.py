"""What is known of a replica when a decision is taken: its signals, and what the proxies have there."""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.signals.merge import Signals

NEVER = float("-inf")
"""Before every time. Times are seconds on the clock of the events, which never goes back."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One replica at one look. `at`: of its newest sample. `in_flight`: requests that the proxies have there, where
    they can tell. `reserves_memory`: free GPU memory means nothing for this engine."""

    at: float
    signals: Signals
    in_flight: int | None = None
    reserves_memory: bool = False

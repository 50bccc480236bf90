"""Merges a replica's sources into one set of signals: for each signal, the first source with a fresh value wins.

Every signal has its own age. A signal without a value within `stale_after` is unknown; its last value is kept
separately for use in explanations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lbctl.signals.derive import Evidence, TimedValue


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal's value and where it came from."""

    value: float
    """The value, in the unit of the signal."""
    at: float
    """Time of the reading, in seconds."""
    source: int
    """Index of the signal's source."""

    def age(self, now: float) -> float:
        """Return the number of seconds since the value was read."""
        return max(0.0, now - self.at)


@dataclass(frozen=True, slots=True)
class SourceSignals:
    """The last value of each of a source's signals."""

    values: Mapping[str, TimedValue] = field(default_factory=dict)
    """Maps each signal to its last value."""
    evidence: Evidence | None = None
    """The engine's counter increases between the last two readings; None if there were too few readings or the source
    has no counters."""
    xids: tuple[tuple[str, int], ...] = ()
    """(GPU, code) of XID errors."""
    by_steps: bool = False
    """Whether progress changes with each step of the engine."""


@dataclass(frozen=True, slots=True)
class Signals:
    """One replica's signals."""

    values: Mapping[str, Signal]
    """Fresh values only."""
    stale: Mapping[str, Signal] = field(default_factory=dict)
    """The last value of each signal that has no fresh value."""
    evidence: Evidence | None = None
    """Fresh evidence from the first source that has any."""
    xids: tuple[tuple[str, int], ...] = ()
    """(GPU, code) pairs for XID errors as reported by the driver."""
    by_steps: bool = False
    """Whether progress changes with each step of the engine.

    If it does, a long period without progress is a fault; otherwise, progress changes only when a request ends.
    """

    def get(self, name: str) -> float | None:
        """Return the fresh value, or None."""
        signal = self.values.get(name)
        return None if signal is None else signal.value


def merge(sources: Sequence[SourceSignals], now: float, stale_after: float) -> Signals:
    """Merge the sources in order of preference.

    `now` uses the same clock as the values; `stale_after` is in seconds.
    """
    values: dict[str, Signal] = {}
    stale: dict[str, Signal] = {}
    for index, source in enumerate(sources):
        for name, value in source.values.items():
            signal = Signal(value.value, value.at, index)
            if signal.age(now) <= stale_after:
                values.setdefault(name, signal)
            elif name not in stale or stale[name].at < signal.at:
                stale[name] = signal
    for name in values:
        stale.pop(name, None)
    evidence = next((source.evidence for source in sources if _fresh(source.evidence, now, stale_after)), None)
    progress, xid = values.get("progress"), values.get("xid")
    return Signals(
        values,
        stale,
        evidence,
        sources[xid.source].xids if xid else (),
        bool(progress and sources[progress.source].by_steps),
    )


def _fresh(evidence: Evidence | None, now: float, stale_after: float) -> bool:
    return evidence is not None and now - evidence.at <= stale_after

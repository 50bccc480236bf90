"""Several sources of one replica as one set of signals: the first in the list with a fresh value for a signal gives it.

Every signal keeps its own age. What no source has told within `stale_after` is unknown; what it last was stands apart,
for those who explain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lbctl.signals.derive import Evidence, Value


@dataclass(frozen=True, slots=True)
class Signal:
    """`source`: its place in the list of sources."""

    value: float
    at: float
    source: int

    def age(self, now: float) -> float:
        """Seconds since somebody said it."""
        return max(0.0, now - self.at)


@dataclass(frozen=True, slots=True)
class Told:
    """What one source has said up to now, each signal when it last did."""

    values: Mapping[str, Value] = field(default_factory=dict)
    evidence: Evidence | None = None
    xids: tuple[tuple[str, int], ...] = ()
    by_steps: bool = False


@dataclass(frozen=True, slots=True)
class Signals:
    """A replica's. `values`: fresh ones alone; `stale`: what a signal last was, where nothing fresh is known.

    `evidence`: of the last look that had some; `xids`: (GPU, code) as the driver told them; `by_steps`: progress moves
    with each step of the engine, so that standing still for long is a sign; else it moves when a request ends.
    """

    values: Mapping[str, Signal]
    stale: Mapping[str, Signal] = field(default_factory=dict)
    evidence: Evidence | None = None
    xids: tuple[tuple[str, int], ...] = ()
    by_steps: bool = False

    def get(self, name: str) -> float | None:
        """The fresh value; None where there is none."""
        found = self.values.get(name)
        return None if found is None else found.value


def merge(sources: Sequence[Told], now: float, stale_after: float) -> Signals:
    """`now`: on the clock of the values; `stale_after`: seconds."""
    values: dict[str, Signal] = {}
    stale: dict[str, Signal] = {}
    for place, source in enumerate(sources):
        for name, value in source.values.items():
            signal = Signal(value.value, value.at, place)
            if signal.age(now) <= stale_after:
                values.setdefault(name, signal)
            elif name not in stale or stale[name].at < signal.at:
                stale[name] = signal
    for name in values:
        stale.pop(name, None)
    evidence = next((item.evidence for item in sources if _fresh(item.evidence, now, stale_after)), None)
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

"""What the scraper hands on: of each replica its signals, and of each of its sources how the last look went."""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.serve.telemetry.fetch import Reason
from lbctl.signals.derive import Evidence
from lbctl.signals.merge import Signals


@dataclass(frozen=True, slots=True)
class SourceState:
    """`url`: as people may read it, without the values of its query. `looked_at`: when the last look ended; `good_at`:
    when the last one that gave something began; on the scraper's clock, None where it never was. `reason` and `words`:
    why the last look gave nothing, "" where it did. `refused`: (metric, why) of lines that gave nothing. `size`: bytes
    of the page; `seconds`: that the look took."""

    kind: str
    url: str
    looked_at: float | None = None
    good_at: float | None = None
    reason: Reason = ""
    words: str = ""
    size: int = 0
    seconds: float = 0.0
    refused: tuple[tuple[str, str], ...] = ()

    @property
    def ok(self) -> bool:
        return self.good_at is not None and not self.reason

    def age(self, now: float) -> float | None:
        """Seconds since it last gave something; None if it never did."""
        return None if self.good_at is None else max(0.0, now - self.good_at)


@dataclass(frozen=True, slots=True)
class Report:
    """One look at one source of one replica, and what is known of the replica after it. `source`: which one;
    `evidence`: new with this look, to be counted once; `restarted`: the engine's counters began anew;
    `reserves_memory`: an engine holds the GPU's memory from its start, so that free memory says nothing."""

    pool: str
    replica: str
    at: float
    source: int
    signals: Signals
    sources: tuple[SourceState, ...]
    reserves_memory: bool = False
    evidence: Evidence | None = None
    restarted: bool = False

"""The scraper's reports: a replica's signals, and the state of each of its sources."""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.runtime.net.fetch import Reason
from lbctl.signals.cached import CachedTokens
from lbctl.signals.derive import Evidence
from lbctl.signals.merge import Signals


@dataclass(frozen=True, slots=True)
class SourceState:
    """State of one of a replica's sources. Times are in seconds on the scraper's clock; None means never."""

    kind: str
    """Name of the source in the registry."""
    url: str
    """The URL without the values of its query parameters, because these may be secrets."""
    scraped_at: float | None = None
    """Time at which the last scrape ended."""
    good_at: float | None = None
    """Time at which the last scrape that returned a signal began."""
    reason: Reason = ""
    """One-word reason why the last scrape did not return a signal; empty if it did."""
    message: str = ""
    """The reason as a short phrase."""
    size: int = 0
    """Size of the page in bytes."""
    seconds: float = 0.0
    """Duration of the last scrape in seconds."""
    refused: tuple[tuple[str, str], ...] = ()
    """(metric, reason) pairs for lines of the page that were not usable."""

    @property
    def ok(self) -> bool:
        """Return whether the last scrape returned a signal."""
        return self.good_at is not None and not self.reason

    def age(self, now: float) -> float | None:
        """Return the number of seconds since the source last returned a signal; None if it never has."""
        return None if self.good_at is None else max(0.0, now - self.good_at)


@dataclass(frozen=True, slots=True)
class ScrapeReport:
    """A replica's signals after one of its sources has been scraped."""

    pool: str
    """Name of the pool."""
    replica: str
    """Name of the replica."""
    at: float
    """Time at which the scrape ended, in seconds on the scraper's clock."""
    source: int
    """Index of the source that was scraped."""
    signals: Signals
    """The merged signals from all of the replica's sources."""
    sources: tuple[SourceState, ...]
    """The states of all of the replica's sources."""
    reserves_memory: bool = False
    """Whether an engine reserves the GPU's memory at startup, so that free memory is not a usable signal."""
    evidence: Evidence | None = None
    """New evidence from this scrape, which must be counted only once."""
    restarted: bool = False
    """Whether the engine's counters have restarted."""
    first_tokens: float | None = None
    """Number of first tokens generated since the engine started; None if no source reports it."""
    prompt_tokens: float | None = None
    """Number of prompt tokens in the requests counted in `first_tokens`; None if the same source does not report it."""
    cached: CachedTokens | None = None
    """Number of prompt tokens found in the engine's caches since it started; None if no source reports it."""
    member: str = ""
    """The control plane member that scraped the replica; empty for this member."""

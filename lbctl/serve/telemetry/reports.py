"""The reports of the scraper: the signals of a replica, and the state of each of its sources."""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.serve.telemetry.fetch import Reason
from lbctl.signals.derive import Evidence
from lbctl.signals.merge import Signals


@dataclass(frozen=True, slots=True)
class SourceState:
    """The state of one source of a replica. Times are in seconds on the scraper's clock; None means never."""

    kind: str
    """The name of the source in the registry."""
    url: str
    """The address without the values of its query parameters, which may be secrets."""
    scraped_at: float | None = None
    """When the last scrape ended."""
    good_at: float | None = None
    """When the last scrape that gave a signal began."""
    reason: Reason = ""
    """Why the last scrape gave no signal, as one word; empty where it gave one."""
    message: str = ""
    """The reason as a short phrase."""
    size: int = 0
    """The size of the page in bytes."""
    seconds: float = 0.0
    """How long the last scrape took."""
    refused: tuple[tuple[str, str], ...] = ()
    """(metric, reason) for lines of the page that could not be used."""

    @property
    def ok(self) -> bool:
        """Whether the last scrape gave a signal."""
        return self.good_at is not None and not self.reason

    def age(self, now: float) -> float | None:
        """Return the seconds since the source last gave a signal; None where it never did."""
        return None if self.good_at is None else max(0.0, now - self.good_at)


@dataclass(frozen=True, slots=True)
class ScrapeReport:
    """The signals of a replica after one scrape of one of its sources."""

    pool: str
    """The name of the pool."""
    replica: str
    """The name of the replica."""
    at: float
    """When the scrape ended, in seconds on the scraper's clock."""
    source: int
    """The index of the source that was scraped."""
    signals: Signals
    """The merged signals of all sources of the replica."""
    sources: tuple[SourceState, ...]
    """The states of all its sources."""
    reserves_memory: bool = False
    """Whether an engine reserves the GPU's memory at start, so that free memory is not a signal."""
    evidence: Evidence | None = None
    """Evidence that is new with this scrape, to be counted once."""
    restarted: bool = False
    """Whether the counters of the engine have started again."""
    first_tokens: float | None = None
    """How many first tokens the engine has made since its start; None where no source counts them."""
    member: str = ""
    """The member of the control plane that has scraped it; empty: this one."""

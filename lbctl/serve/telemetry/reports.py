"""The scraper's reports: the signals of a replica, and the state of each of its sources."""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.runtime.net.fetch import Reason
from lbctl.signals.cached import CachedTokens
from lbctl.signals.derive import Evidence
from lbctl.signals.merge import Signals


@dataclass(frozen=True, slots=True)
class SourceState:
    """The state of one source of a replica. Times are in seconds on the scraper's clock; None means never."""

    kind: str
    """The name of the source in the registry."""
    url: str
    """The address without the values of its query parameters, because they may be secrets."""
    scraped_at: float | None = None
    """The time at which the last scrape ended."""
    good_at: float | None = None
    """The time at which the last scrape with a signal began."""
    reason: Reason = ""
    """The reason why the last scrape had no signal, as one word; empty if it had one."""
    message: str = ""
    """The reason as a short phrase."""
    size: int = 0
    """The size of the page in bytes."""
    seconds: float = 0.0
    """The duration of the last scrape."""
    refused: tuple[tuple[str, str], ...] = ()
    """(metric, reason) pairs for lines of the page that could not be used."""

    @property
    def ok(self) -> bool:
        """Return whether the last scrape had a signal."""
        return self.good_at is not None and not self.reason

    def age(self, now: float) -> float | None:
        """Return the seconds since the source last had a signal; None if it never had one."""
        return None if self.good_at is None else max(0.0, now - self.good_at)


@dataclass(frozen=True, slots=True)
class ScrapeReport:
    """A replica's signals after a scrape of one of its sources."""

    pool: str
    """The pool's name."""
    replica: str
    """The replica's name."""
    at: float
    """The time at which the scrape ended, in seconds on the scraper's clock."""
    source: int
    """The index of the source that was scraped."""
    signals: Signals
    """The merged signals of all sources of the replica."""
    sources: tuple[SourceState, ...]
    """The states of all sources of the replica."""
    reserves_memory: bool = False
    """Whether an engine reserves the GPU's memory at startup, so that free memory is not a signal."""
    evidence: Evidence | None = None
    """New evidence from this scrape, to be counted once."""
    restarted: bool = False
    """Whether the engine's counters have restarted."""
    first_tokens: float | None = None
    """Number of first tokens that the engine has generated since its start; None if no source counts them."""
    prompt_tokens: float | None = None
    """Number of prompt tokens of the requests in `first_tokens`; None if the same source does not count them."""
    cached: CachedTokens | None = None
    """Prompt tokens that the engine has found in its caches since its start; None if no source counts them."""
    member: str = ""
    """The control plane member that scraped the replica; empty: this member."""

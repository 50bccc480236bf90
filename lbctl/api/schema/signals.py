"""`GET /api/v1/signals`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal of a replica."""

    value: float
    """The value."""
    unit: str
    """The unit."""
    age: float
    """Seconds since it was read."""
    source: str
    """The kind of the source that it was read from."""
    fresh: bool
    """Whether it is younger than `stale_after`, and counts."""


@dataclass(frozen=True, slots=True)
class RefusedMetric:
    """A metric of a page that gave no sample."""

    metric: str
    """The name of the metric."""
    reason: str
    """Why it was refused."""


@dataclass(frozen=True, slots=True)
class Source:
    """A source of telemetry of a replica, as the last scrape left it."""

    kind: str
    """The kind, as `telemetry.sources` names it."""
    url: str
    """The URL, without the values of its query."""
    ok: bool
    """Whether the last scrape gave samples."""
    age: float | None
    """Seconds since it last gave samples; None: never."""
    reason: str | None
    """A short name for why the last scrape failed; None where it did not."""
    message: str | None
    """The same for people; None where it did not fail."""
    bytes: int
    """The size of the page."""
    seconds: float
    """The time that the scrape took."""
    refused: tuple[RefusedMetric, ...]
    """Metrics of the page that gave no sample."""


@dataclass(frozen=True, slots=True)
class ReplicaSignals:
    """What is read of a replica."""

    pool: str
    """The pool."""
    replica: str
    """The replica."""
    stale_after: float
    """Seconds after which a signal no longer counts."""
    signals: Mapping[str, Signal]
    """Name → signal."""
    sources: tuple[Source, ...]
    """The sources, in the order of the fleet."""


@dataclass(frozen=True, slots=True)
class Signals:
    """The answer of `/api/v1/signals`."""

    signals: tuple[ReplicaSignals, ...]
    """A row for each replica of each pool with telemetry."""

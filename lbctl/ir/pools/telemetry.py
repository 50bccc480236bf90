"""Where the metrics of replicas are read, and how weights follow them. Durations are in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MetricsSource:
    """One endpoint of metrics, by URL template."""

    kind: str
    """The name of the source in the registry of metrics sources."""
    url: str
    """The URL, with placeholders that are filled per replica."""
    signal: str | None = None
    """For the kinds custom and prometheus: the signal that the value is."""
    metric: str | None = None
    """For the kind custom: the name of the metric."""
    query: str | None = None
    """For the kind prometheus: the PromQL expression."""
    unit: str | None = None
    """For the kinds custom and prometheus: the unit of the value; None: that of the signal."""
    match_labels: tuple[tuple[str, str], ...] = ()
    """Labels that a sample must have, with placeholders filled per replica."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """How often and where metrics of a replica are read. The first source with a value wins."""

    interval: int = 5_000
    """The time between two scrapes of a source."""
    timeout: int = 2_000
    """How long a scrape may take."""
    stale_after: int = 15_000
    """The age at which a value is no longer used."""
    sources: tuple[MetricsSource, ...] = ()
    """The sources, the preferred one first."""


@dataclass(frozen=True, slots=True)
class Weighting:
    """How a replica's weight follows its signals. Percentages unless noted."""

    strategy: str = "static"
    """The name of the strategy in the registry."""
    smoothing: int = 20_000
    """The time constant of the moving average, in milliseconds."""
    act_above: float = 25.0
    """How far a replica's speed must be off that of its peers before its weight moves."""
    release_below: float = 15.0
    """How near its speed must be again before it gets the weight of its capacity back."""
    across_types: float = 45.0
    """The same as `act_above` between types of GPU."""
    composite: tuple[tuple[str, float], ...] = ()
    """(signal, relative part) of the strategy composite, sorted."""
    max_step_down: float = 50.0
    """The largest decrease of a weight in one interval."""
    max_step_up: float = 10.0
    """The largest increase of a weight in one interval."""
    deadband: float = 10.0
    """The smallest change of a weight that is published."""
    floor: float = 5.0
    """The lowest weight, relative to the capacity."""
    ceiling: float = 400.0
    """The highest weight, relative to the capacity."""

"""Replicas' metrics sources, and how weights follow them. Durations are in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MetricsSource:
    """A metrics endpoint, given as a URL template."""

    kind: str
    """Name of the source in the registry of metrics sources."""
    url: str
    """The URL, with placeholders that are replaced for each replica."""
    signal: str | None = None
    """Signal that the value represents, for the custom and prometheus kinds."""
    metric: str | None = None
    """Name of the metric, for the custom kind."""
    query: str | None = None
    """PromQL expression, for the prometheus kind."""
    unit: str | None = None
    """Unit of the value, for the custom and prometheus kinds, or None for the signal's unit."""
    match_labels: tuple[tuple[str, str], ...] = ()
    """Labels that a sample must have, with placeholders that are replaced for each replica."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Sources and interval for a replica's metrics. The first source with a value is used."""

    interval: int = 5_000
    """Time between two scrapes of the same source."""
    timeout: int = 2_000
    """Timeout for a scrape."""
    stale_after: int = 15_000
    """Age after which a value is no longer used."""
    sources: tuple[MetricsSource, ...] = ()
    """The sources, with the preferred one first."""


@dataclass(frozen=True, slots=True)
class Weighting:
    """How a replica's weight follows its signals. Values are percentages unless otherwise noted."""

    strategy: str = "static"
    """Name of the strategy in the registry."""
    smoothing: int = 20_000
    """Time constant of the moving average, in milliseconds."""
    act_above: float = 25.0
    """Deviation of a replica's speed from its peers' speed above which its weight changes."""
    release_below: float = 15.0
    """Deviation below which the replica returns to its capacity-based weight."""
    across_types: float = 45.0
    """Same as `act_above`, but between GPU types."""
    composite: tuple[tuple[str, float], ...] = ()
    """(signal, relative weight) pairs for the `composite` strategy, sorted."""
    max_step_down: float = 50.0
    """Maximum decrease of a weight per interval."""
    max_step_up: float = 10.0
    """Maximum increase of a weight per interval."""
    deadband: float = 10.0
    """Minimum weight change that is published."""
    floor: float = 5.0
    """Minimum weight, relative to the capacity."""
    ceiling: float = 400.0
    """Maximum weight, relative to the capacity."""

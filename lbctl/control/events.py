"""The events of the control loop. `now` is in seconds on a monotonic clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lbctl.control.inputs import Observation
from lbctl.ir.pools import Pool
from lbctl.ir.weight import Weight


@dataclass(frozen=True, slots=True)
class FleetChanged:
    """The fleet has changed, at startup, after a reload or after discovery. Remaining replicas keep their state."""

    now: float
    """The time of the event."""
    pools: tuple[Pool, ...]
    """The pools with telemetry."""
    weights: Mapping[str, Mapping[str, Weight]] = field(default_factory=dict)
    """Maps each pool and replica to the weight that was sent before a restart."""
    ejections: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """Maps each pool and replica to the reason why the deep health check had ejected it before a restart."""
    asleep: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Maps each pool to the replicas whose engines were asleep before a restart."""
    accepted_remaps: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Maps each pool to the replicas whose failed row remap an operator had accepted before a restart."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Some replicas of a pool were observed."""

    now: float
    """The time of the event."""
    pool: str
    replicas: Mapping[str, Observation]
    """Maps each replica that has been observed since the last event to the observation."""
    ejected: frozenset[str] = frozenset()
    """Replicas that active health checks have ejected. They count towards `max_ejection`."""
    suspected: frozenset[str] = frozenset()
    """Replicas whose engines have stopped, according to the picker."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed. Pools without observations for an interval get a decision without them."""

    now: float
    """The current time."""


@dataclass(frozen=True, slots=True)
class Froze:
    """An operator has frozen the weights of a pool. The deep health check continues to eject and readmit replicas."""

    now: float
    """The time of the event."""
    pool: str
    reason: str = ""
    """The operator's reason, or an empty string if none was given."""


@dataclass(frozen=True, slots=True)
class Unfroze:
    """An operator has ended a pool's freeze."""

    now: float
    """The time of the event."""
    pool: str


@dataclass(frozen=True, slots=True)
class Readmitted:
    """An operator has ended a replica's ejection by the deep health check."""

    now: float
    """The time of the event."""
    pool: str
    replica: str


Event = FleetChanged | Observed | Ticked | Froze | Unfroze | Readmitted

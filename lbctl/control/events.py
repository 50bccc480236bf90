"""All that the control loop is told. `now` is in seconds on one clock that never goes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lbctl.control.inputs import Seen
from lbctl.ir.pools import Pool
from lbctl.ir.weight import Weight


@dataclass(frozen=True, slots=True)
class FleetChanged:
    """The fleet from now on: at the start, on a reload, after discovery. `weights`: what was sent before a
    restart; `out`: why deep health had taken replicas out then. Replicas that the state knows already keep what it
    knows."""

    now: float
    pools: tuple[Pool, ...]
    weights: Mapping[str, Mapping[str, Weight]] = field(default_factory=dict)
    out: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Looked:
    """News of some replicas of a pool; of the others there is none. `ejected`: those that proxies hold out by their
    own checks, where they can tell; they count for `max_ejection`."""

    now: float
    pool: str
    replicas: Mapping[str, Seen]
    ejected: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passes: pools of which there was no news for an interval are decided without."""

    now: float


@dataclass(frozen=True, slots=True)
class Froze:
    """An operator holds the weights of a pool where they are. Health goes on."""

    now: float
    pool: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Unfroze:
    now: float
    pool: str


@dataclass(frozen=True, slots=True)
class LetIn:
    """An operator ends what deep health holds against a replica."""

    now: float
    pool: str
    replica: str


Event = FleetChanged | Looked | Ticked | Froze | Unfroze | LetIn

"""The setup of a replay: a pool, its engines, the policy of the proxies, and changes during the run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from lbctl.ir.pools import Pool
from lbctl.ir.routes import Retry
from lbctl.simulate.engine import CostModel
from lbctl.simulate.policies import Policy


@dataclass(frozen=True, slots=True)
class SpeedChange:
    """A change of a replica's speed."""

    at: float
    """Seconds after the first request."""
    replica: str
    factor: float
    """Factor on the replica's speed from this time on. 0 stops the engine."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A period in which a replica's process is dead: its requests fail, and its port refuses connections."""

    replica: str
    begin: float
    """Seconds after the first request."""
    end: float = math.inf
    """Time at which the replica listens again, with an empty cache; infinite for never."""


def merged(outages: Sequence[Outage]) -> list[Outage]:
    """Return the outages in chronological order. Overlapping outages of a replica are merged."""
    result: list[Outage] = []
    last: dict[str, int] = {}
    for outage in sorted(outages, key=lambda item: item.begin):
        place = last.get(outage.replica)
        if place is not None and outage.begin <= result[place].end:
            result[place] = replace(result[place], end=max(result[place].end, outage.end))
        else:
            last[outage.replica] = len(result)
            result.append(outage)
    return result


@dataclass(frozen=True, slots=True)
class Setup:
    """The setup of a replay."""

    pool: Pool
    """Pool of the fleet, whose capacities, limits, health checks, telemetry and weighting apply."""
    policy: Policy
    """Policy of the proxies."""
    costs: tuple[CostModel, ...]
    """Engine of each replica, at its actual speed."""
    proxies: int = 2
    """Number of proxies that share the load. Each knows only about its own requests."""
    patience: float = 60.0
    """Seconds after which a client without a first token leaves."""
    changes: tuple[SpeedChange, ...] = ()
    """Changes of speed, in chronological order."""
    outages: tuple[Outage, ...] = ()
    """Outages of replicas."""
    joins: Mapping[str, float] = field(default_factory=dict)
    """Maps a replica to the time at which it joins the pool, in seconds after the first request."""
    retry: Retry = field(default_factory=Retry)
    """Retries of the proxies for a request whose replica is dead."""
    delay: float = 1.0
    """Seconds from a sample of the engines to its use."""

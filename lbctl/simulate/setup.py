"""The setup of a replay: a pool, its engines, the proxies' policy, and changes during the run."""

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
    """Multiplier of the replica's speed from this time on. 0 stops the engine."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A period during which a replica's process is dead: its requests fail, and its port refuses connections."""

    replica: str
    begin: float
    """Seconds after the first request."""
    end: float = math.inf
    """Time at which the replica listens again, with an empty cache; infinite for never."""


def merged(outages: Sequence[Outage]) -> list[Outage]:
    """Return the outages in chronological order. A replica's overlapping outages are merged."""
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
    """The fleet's pool, whose capacities, limits, health checks, telemetry and weighting apply."""
    policy: Policy
    """The proxies' policy."""
    costs: tuple[CostModel, ...]
    """Each replica's engine, at its actual speed."""
    proxies: int = 2
    """Number of proxies that share the load. Each knows only its own requests."""
    patience: float = 60.0
    """Seconds after which a client without a first token leaves."""
    changes: tuple[SpeedChange, ...] = ()
    """Speed changes, in chronological order."""
    outages: tuple[Outage, ...] = ()
    """Outages of replicas."""
    joins: Mapping[str, float] = field(default_factory=dict)
    """Maps a replica to the time at which it joins the pool, in seconds after the first request."""
    retry: Retry = field(default_factory=Retry)
    """How proxies retry a request whose replica is dead."""
    delay: float = 1.0
    """Seconds from sampling the engines until the sample is used."""

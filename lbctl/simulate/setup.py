"""What a trace is replayed against: a pool, its engines, how proxies choose, and what happens meanwhile."""

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
    """Seconds since the first request."""
    replica: str
    factor: float
    """Multiplies its speed from then on; 0: it stands still."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A time in which a replica's process is dead: its requests break, and its port refuses connections."""

    replica: str
    begin: float
    """Seconds since the first request."""
    end: float = math.inf
    """When it listens again, with an empty cache; infinite: never."""


def merged(outages: Sequence[Outage]) -> list[Outage]:
    """Return the outages in the order of time, those of a replica that overlap as one."""
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
    """What a trace is replayed against."""

    pool: Pool
    """The pool of the fleet; its capacities, limits, health checks, telemetry and weighting apply."""
    policy: Policy
    """How the proxies choose."""
    costs: tuple[CostModel, ...]
    """The engine of each replica, at its real speed."""
    proxies: int = 2
    """How many proxies share the load; each knows only its own requests."""
    patience: float = 60.0
    """Seconds after which a client without a first token leaves."""
    changes: tuple[SpeedChange, ...] = ()
    """Changes of speed, in the order of time."""
    outages: tuple[Outage, ...] = ()
    """Replicas that die."""
    joins: Mapping[str, float] = field(default_factory=dict)
    """Replica → when it joins the pool, in seconds since the first request."""
    retry: Retry = field(default_factory=Retry)
    """What the proxies do with a request whose replica is dead."""
    delay: float = 1.0
    """Seconds from a sample of the engines to its use."""

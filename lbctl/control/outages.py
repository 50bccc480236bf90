"""Tracks pools without an available replica, to which a rollout does not move requests.

A replica is available unless a check, an ejection or a drain is keeping new requests away from it. A replica whose
state is unknown counts as available, because many fleets have no health checks. The functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lbctl.control.fitness import lacks_fit_replica

OUTAGE_TIMEOUT = 5.0
"""Seconds without an available replica after which a running rollout ends. This allows for a single failed check and
for replicas being replaced."""
CALM = 10.0
"""Seconds with an available replica after which an outage is over. The delay is needed because a reloaded proxy reports
a dead replica as up until its first check."""
_SHOWN = 3
"""Maximum number of replicas named in a reason."""


class ReplicaReport(NamedTuple):
    """The state of a replica, as shown by the API."""

    name: str
    state: str
    reason: str
    """The reason why the replica is in this state, or an empty string for `in`."""


class Outage(NamedTuple):
    """A pool without an available replica."""

    reason: str
    """The replicas and their states, as human-readable text."""
    since: float
    """The time at which the outage was first seen, in seconds since the epoch."""
    seen: float
    """The time at which the outage was last seen, in seconds since the epoch."""


Outages = Mapping[str, Outage]
"""Maps each pool to its outage, which is kept for a while after it was last seen. Pools with an available replica are
omitted."""
NO_OUTAGES: Outages = {}


def unavailable(pool: str, replicas: Iterable[ReplicaReport]) -> str:
    """Return a human-readable reason why the pool has no available replica, or an empty string if it has one."""
    known = list(replicas)
    if known and not lacks_fit_replica(item.state for item in known):
        return ""
    if not known:
        return f"pool {pool} has no replicas"
    shown = [f"{item.name} is {item.state}" + (f" ({item.reason})" if item.reason else "") for item in known[:_SHOWN]]
    more = [f"{len(known) - _SHOWN} more"] if len(known) > _SHOWN else []
    return f"pool {pool} has no available replica: {', '.join([*shown, *more])}"


def track(outages: Outages, reasons: Mapping[str, str], now: float) -> Outages:
    """Return the outages that result from each pool's current reason. An ongoing outage keeps its start time."""
    kept = {pool: item for pool, item in outages.items() if pool in reasons and now - item.seen < CALM}
    seen = {
        pool: Outage(reason, kept[pool].since if pool in kept else now, now)
        for pool, reason in reasons.items()
        if reason
    }
    return {**kept, **seen}

"""Outages: pools without an available replica, with reason and time. A rollout does not move requests to such a pool.

A replica is available unless a check, an ejection or a drain keeps new requests away from it. A replica whose state is
unknown counts as available, because many fleets have no health checks. This is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lbctl.control.fitness import lacks_fit_replica

OUTAGE_TIMEOUT = 5.0
"""Seconds without an available replica after which a running rollout ends: checks may fail once, and replicas may be
replaced."""
CALM = 10.0
"""Seconds with an available replica after which an outage is over: a reloaded proxy reports a dead replica as up until
its first check."""
_SHOWN = 3
"""Maximum number of replicas to name in a reason."""


class ReplicaReport(NamedTuple):
    """The state of one replica, as the API shows it."""

    name: str
    state: str
    reason: str
    """The reason why the replica is in that state; empty for `in`."""


class Outage(NamedTuple):
    """A pool without an available replica."""

    reason: str
    """The replicas and their states, as human-readable text."""
    since: float
    """The time at which the outage was first seen, in seconds since the epoch."""
    seen: float
    """The time at which the outage was last seen, in seconds since the epoch."""


Outages = Mapping[str, Outage]
"""Maps each pool to its outage, kept for a while after it was last seen; pools with an available replica are absent."""
NO_OUTAGES: Outages = {}


def unavailable(pool: str, replicas: Iterable[ReplicaReport]) -> str:
    """Return a human-readable reason why the pool has no available replica; empty if it has one."""
    known = list(replicas)
    if known and not lacks_fit_replica(item.state for item in known):
        return ""
    if not known:
        return f"pool {pool} has no replicas"
    shown = [f"{item.name} is {item.state}" + (f" ({item.reason})" if item.reason else "") for item in known[:_SHOWN]]
    more = [f"{len(known) - _SHOWN} more"] if len(known) > _SHOWN else []
    return f"pool {pool} has no available replica: {', '.join([*shown, *more])}"


def track(outages: Outages, reasons: Mapping[str, str], now: float) -> Outages:
    """Return the outages that result from the current reason of each pool. An ongoing outage keeps its start time."""
    kept = {pool: item for pool, item in outages.items() if pool in reasons and now - item.seen < CALM}
    seen = {
        pool: Outage(reason, kept[pool].since if pool in kept else now, now)
        for pool, reason in reasons.items()
        if reason
    }
    return {**kept, **seen}

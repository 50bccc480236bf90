"""Tracks how long each replica has been drained, and which replicas are removed because their deadline has passed.

A drained replica finishes its requests. After the pool's `drain_deadline`, it is removed from the pool even if it still
has requests. The functions are pure. The time is an argument, and the state that must survive a restart is a plain
mapping. A drain is started in the fleet files or at an operator's request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lbctl.ir.topology import Topology

Since = Mapping[tuple[str, str], float]
"""Maps each (pool, replica) pair to the time at which its drain began, in seconds since the epoch."""


def track(
    before: Since, topology: Topology, drained: Mapping[str, frozenset[str]], now: float
) -> dict[tuple[str, str], float]:
    """Return the start time of each current drain.

    A replica that was already drained in `before` keeps its start time. A replica is removed if it is no longer drained
    or no longer exists. `drained` contains the replicas, by pool, that are drained in addition to those in the files.
    """
    return {
        (pool.name, replica.name): min(before.get((pool.name, replica.name), now), now)
        for pool in topology.pools
        for replica in pool.replicas
        if replica.drain or replica.name in drained.get(pool.name, ())
    }


def expired(since: Since, topology: Topology, now: float) -> dict[str, frozenset[str]]:
    """Maps each pool to the replicas whose drain deadline has passed."""
    deadlines = {pool.name: pool.drain_deadline / 1000 for pool in topology.pools}
    replicas: dict[str, set[str]] = {}
    for (pool, replica), began in since.items():
        if pool in deadlines and began + deadlines[pool] <= now:
            replicas.setdefault(pool, set()).add(replica)
    return {pool: frozenset(names) for pool, names in replicas.items()}


def next_due(since: Since, topology: Topology, now: float) -> float | None:
    """The time at which the next deadline passes, in seconds since the epoch, or None if there is none."""
    deadlines = {pool.name: pool.drain_deadline / 1000 for pool in topology.pools}
    times = [began + deadlines[pool] for (pool, _), began in since.items() if pool in deadlines]
    return min((time for time in times if time > now), default=None)


def without(topology: Topology, removed: Mapping[str, frozenset[str]]) -> Topology:
    """Return the topology without these replicas, given by pool. Unchanged pools remain the same objects."""
    if not removed:
        return topology
    pools = tuple(
        replace(pool, replicas=tuple(item for item in pool.replicas if item.name not in removed[pool.name]))
        if pool.name in removed
        else pool
        for pool in topology.pools
    )
    return replace(topology, pools=pools)

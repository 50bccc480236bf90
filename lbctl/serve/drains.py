"""How long each replica has been drained, and which of them are out: a drained replica finishes what it has, and after
the pool's `drain_deadline` it is taken out of the pool, whatever it still has.

Pure: the time is handed in, and what must survive a restart is a plain mapping. It drains nothing by itself: that
stands in the files, or is what an operator asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lbctl.ir.topology import Topology

Since = Mapping[tuple[str, str], float]
"""(pool, replica) → when its drain began, in seconds since the epoch."""


def follow(
    before: Since, topology: Topology, drained: Mapping[str, frozenset[str]], now: float
) -> dict[tuple[str, str], float]:
    """What is drained now: what was drained before keeps its time, what is no longer drained or no longer there is
    forgotten. `drained`: pool → replicas, besides those that the files drain."""
    return {
        (pool.name, replica.name): min(before.get((pool.name, replica.name), now), now)
        for pool in topology.pools
        for replica in pool.replicas
        if replica.drain or replica.name in drained.get(pool.name, ())
    }


def gone(since: Since, topology: Topology, now: float) -> dict[str, frozenset[str]]:
    """Pool → the replicas whose deadline has passed."""
    deadlines = {pool.name: pool.drain_deadline / 1000 for pool in topology.pools}
    found: dict[str, set[str]] = {}
    for (pool, replica), began in since.items():
        if pool in deadlines and began + deadlines[pool] <= now:
            found.setdefault(pool, set()).add(replica)
    return {pool: frozenset(names) for pool, names in found.items()}


def next_due(since: Since, topology: Topology, now: float) -> float | None:
    """When the next deadline passes, in seconds since the epoch; None where none is ahead."""
    deadlines = {pool.name: pool.drain_deadline / 1000 for pool in topology.pools}
    ahead = [began + deadlines[pool] for (pool, _), began in since.items() if pool in deadlines]
    return min((when for when in ahead if when > now), default=None)


def without(topology: Topology, out: Mapping[str, frozenset[str]]) -> Topology:
    """The fleet as the proxies get it: pools lack the replicas that are out. What stays is the same object."""
    if not out:
        return topology
    pools = tuple(
        replace(pool, replicas=tuple(item for item in pool.replicas if item.name not in out[pool.name]))
        if pool.name in out
        else pool
        for pool in topology.pools
    )
    return replace(topology, pools=pools)

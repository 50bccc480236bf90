"""Applies a new fleet to the state. Existing replicas keep their state, and new ones start at their capacity."""

from __future__ import annotations

from dataclasses import replace

from lbctl.control.events import FleetChanged
from lbctl.control.health import restored, rules_of
from lbctl.control.state import PoolState, ReplicaState, State, new_replica_state, peers_of
from lbctl.control.weighting.strategy import MultiplierParts
from lbctl.ir.pools import Pool, Replica


def with_fleet(state: State, event: FleetChanged) -> State:
    """Return the state with exactly the event's pools and replicas."""
    pools = {}
    for pool in event.pools:
        before = state.pools.get(pool.name)
        pools[pool.name] = _updated_pool(before, pool, event.now) if before is not None else _new_pool(pool, event)
    return State(pools, event.now)


def _new_pool(pool: Pool, event: FleetChanged) -> PoolState:
    """Treat weights from before a restart as current evidence, and continue deep health from its last verdicts."""
    replicas = tuple(_restored(item, pool, event) for item in pool.replicas)
    return PoolState(pool, rules_of(pool), replicas, _indices(pool))


def _restored(replica: Replica, pool: Pool, event: FleetChanged) -> ReplicaState:
    name, now = replica.name, event.now
    weight = event.weights.get(pool.name, {}).get(name)
    reasons = event.ejections.get(pool.name, {}).get(name)
    if reasons is not None:
        state = new_replica_state(replica, min(pool.weighting.floor / 100, 1.0), now)
    elif weight is None:
        state = new_replica_state(replica, 1.0, now)
    else:
        multiplier = _clamped(weight.rate / replica.capacity, pool)
        parts = MultiplierParts(weight.speed, weight.room / replica.capacity)
        state = new_replica_state(replica, multiplier, now, parts)._replace(proposed_at=now)
    is_asleep = name in event.asleep.get(pool.name, ())
    accepts_remap = name in event.accepted_remaps.get(pool.name, ())
    return state._replace(health=restored(reasons, is_asleep, accepts_remap, now))


def _updated_pool(before: PoolState, pool: Pool, now: float) -> PoolState:
    if before.pool == pool:
        return before
    earlier = {item.replica.name: item for item in before.replicas}
    replicas = tuple(_updated(earlier.get(item.name), item, pool, now) for item in pool.replicas)
    return replace(before, pool=pool, rules=rules_of(pool), replicas=replicas, index=_indices(pool))


def _updated(before: ReplicaState | None, replica: Replica, pool: Pool, now: float) -> ReplicaState:
    """The state of a replica that remains in the pool. A replica with a different address is a different replica."""
    if before is None or before.replica.address != replica.address:
        return new_replica_state(replica, 1.0, now)
    trajectory = before.trajectory
    clamped = trajectory._replace(
        multiplier=_clamped(trajectory.multiplier, pool), decided=_clamped(trajectory.decided, pool)
    )
    return before._replace(replica=replica, peers=peers_of(replica), trajectory=clamped)


def _indices(pool: Pool) -> dict[str, int]:
    return {item.name: index for index, item in enumerate(pool.replicas)}


def _clamped(multiplier: float, pool: Pool) -> float:
    rules = pool.weighting
    return min(max(multiplier, rules.floor / 100), rules.ceiling / 100)

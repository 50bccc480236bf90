"""Applies a new fleet to the state: existing replicas keep their state, and new ones start at their capacity."""

from __future__ import annotations

from dataclasses import replace

from lbctl.control.events import FleetChanged
from lbctl.control.health import DeepHealth, rules_of
from lbctl.control.state import PoolState, ReplicaState, State, new_replica_state, peers_of
from lbctl.control.weighting.strategy import MultiplierParts
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.weight import Weight


def with_fleet(state: State, event: FleetChanged) -> State:
    """Return the state with exactly the pools and replicas of the event."""
    pools = {}
    for pool in event.pools:
        before = state.pools.get(pool.name)
        pools[pool.name] = _updated_pool(before, pool, event.now) if before is not None else _new_pool(pool, event)
    return State(pools, event.now)


def _new_pool(pool: Pool, event: FleetChanged) -> PoolState:
    """Weights from before a restart count as current evidence; replicas that were ejected or asleep are so again."""
    weights, ejections = event.weights.get(pool.name, {}), event.ejections.get(pool.name, {})
    replicas = [
        _restored(item, weights.get(item.name), ejections.get(item.name), pool, event.now) for item in pool.replicas
    ]
    asleep = event.asleep.get(pool.name, frozenset())
    if asleep:
        replicas = [
            item._replace(health=item.health._replace(is_asleep=True)) if item.replica.name in asleep else item
            for item in replicas
        ]
    return PoolState(pool, rules_of(pool), tuple(replicas), _indices(pool))


def _restored(
    replica: Replica, weight: Weight | None, reasons: tuple[str, ...] | None, pool: Pool, now: float
) -> ReplicaState:
    if reasons is not None:
        state = new_replica_state(replica, min(pool.weighting.floor / 100, 1.0), now)
        return state._replace(health=DeepHealth(phase="out", reasons=reasons, since=now, ejections=1))
    if weight is None:
        return new_replica_state(replica, 1.0, now)
    multiplier = _clamped(weight.rate / replica.capacity, pool)
    parts = MultiplierParts(weight.speed, weight.room / replica.capacity)
    return new_replica_state(replica, multiplier, now, parts)._replace(proposed_at=now)


def _updated_pool(before: PoolState, pool: Pool, now: float) -> PoolState:
    if before.pool == pool:
        return before
    earlier = {item.replica.name: item for item in before.replicas}
    replicas = tuple(_updated(earlier.get(item.name), item, pool, now) for item in pool.replicas)
    return replace(before, pool=pool, rules=rules_of(pool), replicas=replicas, index=_indices(pool))


def _updated(before: ReplicaState | None, replica: Replica, pool: Pool, now: float) -> ReplicaState:
    """The state of a replica that stays in the pool. A replica with a different address is a different replica."""
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

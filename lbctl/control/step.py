"""The control loop as a pure function that takes an event and returns a new state and effects.

Equal events produce equal results.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lbctl.control import fleet, health
from lbctl.control.effects import Effect
from lbctl.control.events import Event, FleetChanged, Froze, Observed, Readmitted, Ticked, Unfroze
from lbctl.control.pool import decide, health_changes, weights_of
from lbctl.control.state import PoolState, State, weights
from lbctl.ir.weight import from_capacity

Stepped = tuple[State, tuple[Effect, ...]]


def step(state: State, event: Event) -> Stepped:
    """Return the state after the event, and its effects.

    An event about an unknown pool or replica changes nothing, because a reload may have removed it.
    """
    match event:
        case FleetChanged():
            return _fleet(state, event)
        case Ticked():
            return _tick(state, event)
        case Observed() | Froze() | Unfroze() | Readmitted():
            return _pool(state, event)


def _pool(state: State, event: Observed | Froze | Unfroze | Readmitted) -> Stepped:
    before = state.pools.get(event.pool)
    if before is None:
        return state, ()
    observations = event.replicas if isinstance(event, Observed) else {}
    after, effects = decide(before, _with_event(before, event), observations, event.now)
    return State({**state.pools, event.pool: after}, event.now), effects


def _with_event(pool: PoolState, event: Observed | Froze | Unfroze | Readmitted) -> PoolState:
    if isinstance(event, Observed):
        return replace(pool, ejected=event.ejected, suspected=event.suspected)
    if isinstance(event, Froze):
        return replace(pool, freeze_reason=event.reason)
    if isinstance(event, Unfroze):
        return replace(pool, freeze_reason=None)
    index = pool.index.get(event.replica)
    if index is None:
        return pool
    replicas = list(pool.replicas)
    before = replicas[index]
    progress_watch = before.progress_watch._replace(still_since=None)
    readmitted = health.readmitted(before.health, event.now)
    replicas[index] = before._replace(health=readmitted, progress_watch=progress_watch)
    return replace(pool, replicas=tuple(replicas))


def _fleet(state: State, event: FleetChanged) -> Stepped:
    after = fleet.with_fleet(state, event)
    effects: list[Effect] = []
    pools = {}
    for name, pool in after.pools.items():
        effects.extend(_effects_of_fleet(state.pools.get(name), pool, event))
        pools[name], decided = decide(pool, pool, {}, event.now)
        effects.extend(decided)
    return State(pools, event.now), tuple(effects)


def _effects_of_fleet(before: PoolState | None, after: PoolState, event: FleetChanged) -> Iterator[Effect]:
    """Yield the changes due to the fleet alone, which are weights and the health of replicas whose address has changed.

    The effects for a new pool are relative to the state sent before a restart.
    """
    if after is before:
        return
    name = after.pool.name
    if before is None:
        capacities = {item.name: from_capacity(item.capacity) for item in after.pool.replicas}
        sent = event.weights.get(name) or capacities
    else:
        sent = weights(before)
        earlier = {item.replica.name: item for item in before.replicas}
        stayed = ((earlier[item.replica.name], item) for item in after.replicas if item.replica.name in earlier)
        yield from health_changes(name, stayed)
    if weights(after) != sent:
        yield weights_of(after)


def _tick(state: State, event: Ticked) -> Stepped:
    effects: list[Effect] = []
    pools = dict(state.pools)
    for name, pool in state.pools.items():
        if event.now - pool.decided_at >= pool.rules.interval:
            pools[name], decided = decide(pool, pool, {}, event.now)
            effects.extend(decided)
    return State(pools, event.now), tuple(effects)

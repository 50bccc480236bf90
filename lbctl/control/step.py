"""The heart: one event in, a new state and what must be done out. The same events give the same states and effects."""

from __future__ import annotations

from dataclasses import replace

from lbctl.control import fleet, health
from lbctl.control.effects import Effect, WeightsChanged
from lbctl.control.events import Event, FleetChanged, Froze, LetIn, Looked, Ticked, Unfroze
from lbctl.control.pool import decided
from lbctl.control.state import PoolState, State, weights
from lbctl.ir.weight import plain

Stepped = tuple[State, tuple[Effect, ...]]


def step(state: State, event: Event) -> Stepped:
    """An event about a pool or a replica that is not there does nothing: it may have gone with a reload."""
    match event:
        case FleetChanged():
            return _fleet(state, event)
        case Ticked():
            return _tick(state, event)
        case Looked() | Froze() | Unfroze() | LetIn():
            return _pool(state, event)


def _pool(state: State, event: Looked | Froze | Unfroze | LetIn) -> Stepped:
    was = state.pools.get(event.pool)
    if was is None:
        return state, ()
    news = event.replicas if isinstance(event, Looked) else {}
    after, effects = decided(was, _changed(was, event), news, event.now)
    return State({**state.pools, event.pool: after}, event.now), effects


def _changed(pool: PoolState, event: Looked | Froze | Unfroze | LetIn) -> PoolState:
    if isinstance(event, Looked):
        return replace(pool, ejected=event.ejected)
    if isinstance(event, Froze):
        return replace(pool, held=event.reason)
    if isinstance(event, Unfroze):
        return replace(pool, held=None)
    place = pool.index.get(event.replica)
    if place is None:
        return pool
    tracks = list(pool.tracks)
    was = tracks[place]
    pulse = was.pulse._replace(still_since=None)
    tracks[place] = was._replace(health=health.let_in(was.health, event.now), pulse=pulse)
    return replace(pool, tracks=tuple(tracks))


def _fleet(state: State, event: FleetChanged) -> Stepped:
    after = fleet.changed(state, event)
    told: list[Effect] = []
    pools = {}
    for name, pool in after.pools.items():
        before = state.pools.get(name)
        capacities = {item.name: plain(item.capacity) for item in pool.pool.replicas}
        if weights(pool) != (weights(before) if before else capacities):
            told.append(WeightsChanged(name, weights(pool)))
        pools[name], effects = decided(pool, pool, {}, event.now)
        told.extend(effects)
    return State(pools, event.now), tuple(told)


def _tick(state: State, event: Ticked) -> Stepped:
    told: list[Effect] = []
    pools = dict(state.pools)
    for name, pool in state.pools.items():
        if event.now - pool.decided_at >= pool.rules.interval:
            pools[name], effects = decided(pool, pool, {}, event.now)
            told.extend(effects)
    return State(pools, event.now), tuple(told)

"""What a new fleet does to the state: replicas that stay keep what is known of them, new ones begin at their capacity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lbctl.control.events import FleetChanged
from lbctl.control.health import rules
from lbctl.control.state import PoolState, State, Track, new_track, peers_of
from lbctl.ir.pools import Pool, Replica


def changed(state: State, event: FleetChanged) -> State:
    """A replica ramps when it joins a pool that was there before, or when its drain ends."""
    pools = {
        pool.name: _pool(state.pools.get(pool.name), pool, event.weights.get(pool.name, {}), event.now)
        for pool in event.pools
    }
    return State(pools, event.now)


def _pool(was: PoolState | None, pool: Pool, known: Mapping[str, float], now: float) -> PoolState:
    if was is not None and was.pool == pool:
        return was
    tracks = tuple(
        _track(was.tracks[was.index[item.name]] if was and item.name in was.index else None, item, pool, known, now)
        if was
        else _first(item, pool, known)
        for item in pool.replicas
    )
    index = {item.name: place for place, item in enumerate(pool.replicas)}
    if was is None:
        return PoolState(pool, rules(pool), tracks, index)
    return replace(was, pool=pool, rules=rules(pool), tracks=tracks, index=index)


def _first(replica: Replica, pool: Pool, known: Mapping[str, float]) -> Track:
    weight = known.get(replica.name)
    return new_track(replica, 1.0 if weight is None else _clamped(weight / replica.capacity, pool), None)


def _track(was: Track | None, replica: Replica, pool: Pool, known: Mapping[str, float], now: float) -> Track:
    if was is None:
        return _first(replica, pool, known)._replace(joined_at=now)
    if was.replica == replica:
        return was._replace(multiplier=_clamped(was.multiplier, pool), sent=_clamped(was.sent, pool))
    if was.replica.address != replica.address:
        return new_track(replica, 1.0, now)
    joined = now if was.replica.drain and not replica.drain else was.joined_at
    return was._replace(replica=replica, peers=peers_of(replica), joined_at=joined)


def _clamped(multiplier: float, pool: Pool) -> float:
    rules = pool.weighting
    return min(max(multiplier, rules.floor / 100), rules.ceiling / 100)

"""What a new fleet does to the state: replicas that stay keep what is known, new ones begin at their capacity."""

from __future__ import annotations

from dataclasses import replace

from lbctl.control.events import FleetChanged
from lbctl.control.health import Health, rules
from lbctl.control.state import PoolState, State, Track, new_track, peers_of
from lbctl.control.weighting.strategy import Parts
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.weight import Weight


def changed(state: State, event: FleetChanged) -> State:
    """A replica ramps when it joins a pool that was there before, or when its drain ends."""
    pools = {}
    for pool in event.pools:
        was = state.pools.get(pool.name)
        pools[pool.name] = _again(was, pool, event.now) if was is not None else _first(pool, event)
    return State(pools, event.now)


def _first(pool: Pool, event: FleetChanged) -> PoolState:
    """Weights of before a restart count as evidence of that moment; who was out is out anew."""
    known, out = event.weights.get(pool.name, {}), event.out.get(pool.name, {})
    tracks = tuple(_known(item, known.get(item.name), out.get(item.name), pool, event.now) for item in pool.replicas)
    return PoolState(pool, rules(pool), tracks, _places(pool))


def _known(replica: Replica, weight: Weight | None, reasons: tuple[str, ...] | None, pool: Pool, now: float) -> Track:
    if reasons is not None:
        track = new_track(replica, min(pool.weighting.floor / 100, 1.0), None, now)
        return track._replace(health=Health(phase="out", reasons=reasons, since=now, ejections=1))
    if weight is None:
        return new_track(replica, 1.0, None, now)
    parts = Parts(weight.speed, weight.room / replica.capacity)
    return new_track(replica, _clamped(weight.rate / replica.capacity, pool), None, now, parts)._replace(known_at=now)


def _again(was: PoolState, pool: Pool, now: float) -> PoolState:
    if was.pool == pool:
        return was
    before = {item.replica.name: item for item in was.tracks}
    tracks = tuple(_track(before.get(item.name), item, pool, now) for item in pool.replicas)
    return replace(was, pool=pool, rules=rules(pool), tracks=tracks, index=_places(pool))


def _track(was: Track | None, replica: Replica, pool: Pool, now: float) -> Track:
    """Another address is another replica."""
    if was is None or was.replica.address != replica.address:
        return new_track(replica, 1.0, now, now)
    return was._replace(
        replica=replica,
        peers=peers_of(replica),
        course=was.course._replace(
            multiplier=_clamped(was.course.multiplier, pool), sent=_clamped(was.course.sent, pool)
        ),
        joined_at=now if was.replica.drain and not replica.drain else was.joined_at,
    )


def _places(pool: Pool) -> dict[str, int]:
    return {item.name: place for place, item in enumerate(pool.replicas)}


def _clamped(multiplier: float, pool: Pool) -> float:
    rules = pool.weighting
    return min(max(multiplier, rules.floor / 100), rules.ceiling / 100)

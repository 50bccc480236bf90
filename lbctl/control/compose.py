"""Composes the fleet for the proxies from the files and everything that changes it, in a single pure module.

`compose` applies the control loop's decisions (weights, ejections), operators' overrides (drains, weights, route
splits) and drain deadlines to the fleet. `for_proxy` adds the features that lbctl provides for proxies that lack them:
active health checks and slow start. The publisher, the drivers and the views (status, explain, metrics) read the result
instead of recomputing it. Times are passed as arguments, in seconds since the epoch for `compose` and in seconds on any
clock for `for_proxy`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from lbctl.control import drains, overrides, rollouts, splits
from lbctl.control.drains import Since
from lbctl.control.health import ASLEEP
from lbctl.control.loop_output import LoopOutput, Reasons
from lbctl.control.overrides import Override, Overrides
from lbctl.control.rollouts import Rollouts
from lbctl.control.slow_start import Factors, Ramps
from lbctl.ir.pools import Pool, Replica, relieved
from lbctl.ir.shares import of_replicas
from lbctl.ir.snapshot import Snapshot, drained_of, weights_of
from lbctl.ir.weight import Weight

ReplicaStatus = Literal["in", "drained", "asleep", "ejected", "removed"]
"""in: the replica gets requests. drained: it gets no new requests and finishes its current ones. asleep: its engine is
asleep, so it gets no traffic. ejected: the deep health check is keeping traffic off it. removed: its drain deadline has
passed, and it has been removed from the proxies."""


@dataclass(frozen=True, slots=True)
class EffectiveReplica:
    """One replica with all overrides, ejections and drains applied."""

    replica: Replica
    """The replica as defined by the files and discovery."""
    weight: Weight
    """The published weight or, if the status is not "in", the weight that the replica will have when it returns."""
    share: float
    """The replica's fraction of the pool's requests, from 0 to 1."""
    status: ReplicaStatus
    """Whether the replica gets requests."""
    reasons: tuple[str, ...]
    """The reason why the replica is not "in", and any weight set by an operator."""
    drained_since: float | None
    """The time at which the replica's drain began, in seconds since the epoch, or None if it is not drained."""


@dataclass(frozen=True, slots=True)
class Composed:
    """The fleet with all overrides, ejections and drains applied."""

    snapshot: Snapshot
    """The snapshot for the proxies."""
    whole: Snapshot
    """`snapshot` including the `removed` replicas, for operators."""
    drains: Since
    """Maps each (pool, replica) pair to the time at which its drain began."""
    removed: Mapping[str, frozenset[str]]
    """Maps each pool to the replicas whose drain deadline has passed."""
    ejected: Mapping[str, Reasons]
    """Maps each pool and replica to the reason why the deep health check has ejected it."""
    asleep: Mapping[str, frozenset[str]]
    """Maps each pool to the replicas whose engines are asleep."""
    overrides: Overrides
    """The operators' overrides that currently apply to this fleet."""

    def next_deadline(self, now: float) -> float | None:
        """The time of the next drain deadline that changes the result of `compose`, or None if there is none."""
        return drains.next_due(self.drains, self.whole.topology, now)

    def replicas(self, pool: Pool) -> tuple[EffectiveReplica, ...]:
        """One item per replica of this pool in `whole`, in the same order.

        The items are computed on demand, so that publishing 10,000 replicas does not have to wait for them.
        """
        weights = weights_of(pool, self.whole)
        rates = {item.name: weight.rate for item, weight in zip(pool.replicas, weights, strict=True)}
        shares = of_replicas(pool, rates, drained_of(pool, self.whole))
        overrides_of = self._overrides_of(pool.name)
        source = "discovery" if pool.discovery is not None and not pool.discovery.compiled else "the files"
        return tuple(
            EffectiveReplica(
                item,
                weight,
                shares.get(item.name, 0.0),
                status := self._status(pool.name, item.name),
                self._reasons(pool.name, item, status, source, overrides_of.get(item.name, ())),
                self.drains.get((pool.name, item.name)),
            )
            for item, weight in zip(pool.replicas, weights, strict=True)
        )

    def _overrides_of(self, pool: str) -> dict[str, list[Override]]:
        """Maps each replica to its overrides."""
        by_replica: dict[str, list[Override]] = {}
        for item in self.overrides:
            if item.pool == pool:
                by_replica.setdefault(item.replica, []).append(item)
        return by_replica

    def _status(self, pool: str, replica: str) -> ReplicaStatus:
        if replica in self.removed.get(pool, ()):
            return "removed"
        if replica in self.ejected.get(pool, ()):
            return "ejected"
        if replica in self.asleep.get(pool, ()):
            return "asleep"
        return "drained" if (pool, replica) in self.drains else "in"

    def _reasons(
        self, pool: str, replica: Replica, status: ReplicaStatus, source: str, active: Iterable[Override]
    ) -> tuple[str, ...]:
        reasons = ["its drain deadline has passed"] if status == "removed" else []
        reasons += self.ejected.get(pool, {}).get(replica.name, ())
        if status == "asleep":
            reasons.append(ASLEEP)
        if replica.drain:
            reasons.append(f"drained by {source}")
        return (*reasons, *map(_override_reason, active))


def _override_reason(item: Override) -> str:
    effect = "drained by an operator" if item.kind == "drain" else f"weight {item.value:g} set by an operator"
    return f"{effect}: {item.reason}" if item.reason else effect


def compose(
    fleet: Snapshot, output: LoopOutput, requested: Overrides, drained: Since, now: float, moving: Rollouts = ()
) -> Composed:
    """Apply the control loop's output, rollouts (`moving`), the operators' overrides and drain deadlines to the fleet.

    `fleet` contains the discovered replicas but no live state. `output` and `requested` may also refer to pools and
    replicas that no longer exist; those parts are ignored. `drained` is `Composed.drains` from the previous call, so
    that a drain keeps its start time. `now` is in seconds since the epoch.
    """
    topology = fleet.topology
    active = overrides.within(overrides.current(requested, now), topology)
    by_operator = overrides.drained(active)
    since = drains.track(drained, topology, by_operator, now)
    removed = drains.expired(since, topology, now)
    live = output.within(topology)
    weights = overrides.apply_weights(active, live.weights)
    served = splits.apply(topology, rollouts.splits(moving, topology) | overrides.splits(active))
    whole = replace(fleet, topology=served, weights=weights, drained=by_operator, out=live.out)
    snapshot = replace(whole, topology=drains.without(served, removed)) if removed else whole
    return Composed(snapshot, whole, since, removed, live.ejections, live.asleep, active)


def weight_changes(before: Composed, after: Composed) -> dict[str, dict[str, Weight]]:
    """Published weights, by pool and replica, for replicas that get requests and whose weights have changed."""
    old = {pool.name: pool for pool in before.snapshot.topology.pools}
    changes = {
        pool.name: _pool_changes(old[pool.name], before.snapshot, pool, after.snapshot)
        for pool in after.snapshot.topology.pools
        if pool.name in old
    }
    return {name: weights for name, weights in changes.items() if weights}


def _pool_changes(old: Pool, before: Snapshot, new: Pool, after: Snapshot) -> dict[str, Weight]:
    if old is new and before.weights.get(old.name) == after.weights.get(new.name):
        return {}
    names = [item.name for item in old.replicas]
    previous = dict(zip(names, weights_of(old, before), strict=True))
    drained = drained_of(new, after)
    return {
        item.name: weight
        for item, weight in zip(new.replicas, weights_of(new, after), strict=True)
        if item.name not in drained and previous.get(item.name, weight) != weight
    }


# ── For one proxy ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ForProxy:
    """The fleet for a proxy that lacks active health checks and slow start."""

    snapshot: Snapshot
    """The snapshot for the proxy."""
    ramps: Ramps
    """Argument for the next call to `for_proxy`."""
    factors: Factors = field(default_factory=dict)
    """The slow-start factors included in the weights in `snapshot`."""
    next_change: float | None = None
    """The time at which slow start next changes the weights, or None if no replica is ramping."""


def for_proxy(
    composed: Composed, failing: Mapping[str, frozenset[str]], ramps: Ramps, now: float, min_interval: float
) -> ForProxy:
    """Compose the snapshot for a proxy that lacks active health checks and slow start.

    `failing` contains the replicas, by pool, that active health checks have ejected. `ramps` contains the ramps from
    the previous call. `now` is in seconds. `min_interval` is the shortest time between weight changes that the proxy
    can follow, in seconds.
    """
    failing = _closed(composed.snapshot, failing)
    snapshot = _without(composed.snapshot, failing)
    ramps = ramps.track(snapshot.topology.pools, composed.snapshot, failing, now)
    factors = _relieved(snapshot, ramps.factors(snapshot.topology, now, min_interval))
    next_change = ramps.next_change(snapshot.topology, now, min_interval)
    return ForProxy(_ramped(snapshot, factors), ramps, factors, next_change)


def _closed(snapshot: Snapshot, failing: Mapping[str, frozenset[str]]) -> Mapping[str, frozenset[str]]:
    """Return the failing replicas, except in `fail_open` pools that would have none left."""
    opened = {
        pool.name
        for pool in snapshot.topology.pools
        if pool.fail_open
        and {item.name for item in pool.replicas} - drained_of(pool, snapshot) <= failing.get(pool.name, frozenset())
    }
    return {pool: names for pool, names in failing.items() if pool not in opened} if opened else failing


def _without(snapshot: Snapshot, failing: Mapping[str, frozenset[str]]) -> Snapshot:
    if not failing:
        return snapshot
    drained = {pool: snapshot.drained.get(pool, frozenset()) | names for pool, names in failing.items()}
    return replace(snapshot, drained={**snapshot.drained, **drained})


def _relieved(snapshot: Snapshot, factors: Factors) -> Factors:
    """Increase the factors so that slow start leaves enough of each priority's capacity in use."""
    by_pool: dict[str, dict[str, float]] = {}
    for pool in snapshot.topology.pools:
        of_pool, drained = factors.get(pool.name, {}), drained_of(pool, snapshot)
        weights = dict(zip(pool.replicas, weights_of(pool, snapshot), strict=True)) if of_pool else {}
        for priority in {item.priority for item in weights}:
            rates = {item.name: weight.rate for item, weight in weights.items() if item.priority == priority}
            if ramped := relieved(of_pool, rates, drained):
                by_pool.setdefault(pool.name, {}).update(ramped)
    return by_pool


def _ramped(snapshot: Snapshot, factors: Factors) -> Snapshot:
    if not factors:
        return snapshot
    weights = dict(snapshot.weights)
    for pool in snapshot.topology.pools:
        if pool.name in factors:
            pairs = zip(pool.replicas, weights_of(pool, snapshot), strict=True)
            of_pool = factors[pool.name]
            weights[pool.name] = {item.name: weight.times(of_pool.get(item.name, 1.0)) for item, weight in pairs}
    return replace(snapshot, weights=weights)

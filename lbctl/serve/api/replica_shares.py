"""The share of each replica in its pool's requests: decided by lbctl, and acknowledged by the proxies.

A share is the mean over the proxies that may send to the pool, each counted as often as it has instances: proxies
differ where lbctl does active checks or slow start for one of them. A replica that a check keeps out gets nothing, and
the others have its part. Shares are by weight alone; what the proxies really do with their requests is the observed
share of the traffic ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from lbctl.control.slow_start import Factors
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Proxy
from lbctl.ir.shares import of_replicas
from lbctl.ir.snapshot import Snapshot, View, drained_of, weights_of
from lbctl.ir.weight import Weight

Shares = Mapping[str, float]
"""Replica → its share, 0…1; a replica that gets nothing is absent."""


@dataclass(frozen=True, slots=True)
class Carrier:
    """A proxy of the fleet with what lbctl decided for it and what it has."""

    proxy: Proxy
    """Its entry in the fleet."""
    pools: frozenset[str]
    """The pools that it may send to."""
    decided: Snapshot
    """What lbctl has decided for it."""
    acknowledged: Snapshot | View | None
    """What it has; None where it has nothing yet, or where that is unknown."""
    connected: bool = True
    """Whether it should have what is published: it is driven, or one of its nodes is connected."""
    factors: Factors = field(default_factory=dict)
    """The slow-start factors that are part of the weights in `decided`."""
    checked: bool = False
    """Whether lbctl does its active health checks."""
    nodes: tuple[str, ...] = ()
    """The names by which it reports its traffic: the connected nodes of an Envoy, the proxy's own name otherwise."""

    def may_send(self, pool: str, replica: str) -> bool:
        """Return whether the proxy may send new requests to the replica, by what it has or where that is unknown."""
        source = self.acknowledged
        if source is None:
            return True
        if isinstance(source, View):
            return pool in source.pools and _gets_requests(source.pools[pool], replica, source.drained[pool])
        item = next((each for each in source.topology.pools if each.name == pool), None)
        return item is not None and _gets_requests(item, replica, drained_of(item, source))


Unfit = Callable[[Carrier], frozenset[str]]
"""Returns the replicas of a pool that get nothing from a proxy, since a check keeps them out there."""


def _none(_carrier: Carrier) -> frozenset[str]:
    return frozenset()


class ShareTable:
    """Computes the shares of pools. `whole`: the composed fleet with the replicas that are removed from the proxies."""

    def __init__(self, whole: Snapshot, carriers: Iterable[Carrier]) -> None:
        self._whole = whole
        self._carriers = tuple(carriers)
        self._pools: dict[int, Mapping[str, Pool]] = {}

    def decided(self, pool: str, unfit: Unfit = _none) -> Shares:
        """The shares by what lbctl has decided for each proxy; by the composed fleet where no proxy has the pool."""
        sources = [(item.decided, unfit(item), item.proxy.instances) for item in self._carriers if pool in item.pools]
        return self._mean(pool, sources or [(self._whole, frozenset(), 1)])

    def acknowledged(self, pool: str, unfit: Unfit = _none) -> Shares | None:
        """The shares by what the connected proxies have; None where one has nothing yet, or none is connected."""
        carriers = [item for item in self._carriers if pool in item.pools and item.connected]
        sources = [
            (item.acknowledged, unfit(item), item.proxy.instances) for item in carriers if item.acknowledged is not None
        ]
        return self._mean(pool, sources) if sources and len(sources) == len(carriers) else None

    def _mean(self, pool: str, sources: Iterable[tuple[Snapshot | View, frozenset[str], int]]) -> Shares:
        """Return the mean of the shares in the sources, each counted as often as its number says."""
        counts: dict[tuple[int, frozenset[str]], int] = {}
        by_id: dict[tuple[int, frozenset[str]], Snapshot | View] = {}
        for source, unfit, count in sources:
            key = id(source), unfit
            by_id[key] = source
            counts[key] = counts.get(key, 0) + count
        if len(by_id) == 1:
            (((_, unfit), source),) = by_id.items()
            return self._shares(pool, source, unfit)
        total = sum(counts.values())
        mean: dict[str, float] = {}
        for key, source in by_id.items():
            for name, share in self._shares(pool, source, key[1]).items():
                mean[name] = mean.get(name, 0.0) + share * counts[key] / total
        return mean

    def _shares(self, pool: str, source: Snapshot | View, unfit: frozenset[str]) -> Shares:
        item = self._pool(pool, source)
        if item is None:
            return {}
        if isinstance(source, View):
            return _by_weight(item, source.weights[pool], source.drained[pool] | unfit)
        return _by_weight(item, weights_of(item, source), drained_of(item, source) | unfit)

    def _pool(self, name: str, source: Snapshot | View) -> Pool | None:
        if isinstance(source, View):
            return source.pools.get(name)
        topology = source.topology
        if id(topology) not in self._pools:
            self._pools[id(topology)] = {item.name: item for item in topology.pools}
        return self._pools[id(topology)].get(name)


def _gets_requests(pool: Pool, replica: str, drained: frozenset[str]) -> bool:
    return replica not in drained and any(item.name == replica for item in pool.replicas)


def _by_weight(pool: Pool, weights: tuple[Weight, ...], drained: frozenset[str]) -> Shares:
    rates = {item.name: weight.rate for item, weight in zip(pool.replicas, weights, strict=True)}
    return of_replicas(pool, rates, drained)

"""Each replica's share of its pool's requests, as decided by lbctl and as acknowledged by the proxies.

A share is the mean over the proxies that may send requests to the pool, weighted by their number of instances. Proxies
differ if lbctl runs active checks or slow start for only some of them. A replica ejected by a check gets no requests,
and the other replicas get its share. These shares depend only on the weights; the traffic ledger has the observed
shares of actual requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from lbctl.ir.pools import Pool
from lbctl.ir.shares import of_replicas
from lbctl.ir.snapshot import Snapshot, View, drained_of, weights_of
from lbctl.ir.weight import Weight
from lbctl.serve.api.fleet_proxies import FleetProxy

Shares = Mapping[str, float]
"""Maps each replica to its share, from 0 to 1; replicas without requests are absent."""


Unfit = Callable[[FleetProxy], frozenset[str]]
"""Returns the pool's replicas that get no requests from a proxy because a check has ejected them there."""


def _none(_proxy: FleetProxy) -> frozenset[str]:
    return frozenset()


class ShareTable:
    """Computes the shares of pools.

    `whole`: the composed fleet, including replicas that have been removed from the proxies.
    """

    def __init__(self, whole: Snapshot, proxies: Iterable[FleetProxy]) -> None:
        self._whole = whole
        self._proxies = tuple(proxies)
        self._pools: dict[int, Mapping[str, Pool]] = {}

    def decided(self, pool: str, unfit: Unfit = _none) -> Shares:
        """Return the decided shares, averaged over the proxies.

        If no proxy has the pool, they are computed from the composed fleet.
        """
        sources = [(item.decided, unfit(item), item.proxy.instances) for item in self._proxies if pool in item.pools]
        return self._mean(pool, sources or [(self._whole, frozenset(), 1)])

    def acknowledged(self, pool: str, unfit: Unfit = _none) -> Shares | None:
        """Return the shares that connected proxies have applied; None if a proxy has none yet or none is connected."""
        proxies = [item for item in self._proxies if pool in item.pools and item.connected]
        sources = [
            (item.acknowledged, unfit(item), item.proxy.instances) for item in proxies if item.acknowledged is not None
        ]
        return self._mean(pool, sources) if sources and len(sources) == len(proxies) else None

    def _mean(self, pool: str, sources: Iterable[tuple[Snapshot | View, frozenset[str], int]]) -> Shares:
        """Return the mean of the sources' shares, weighted by the number of instances."""
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


def _by_weight(pool: Pool, weights: tuple[Weight, ...], drained: frozenset[str]) -> Shares:
    rates = {item.name: weight.rate for item, weight in zip(pool.replicas, weights, strict=True)}
    return of_replicas(pool, rates, drained)

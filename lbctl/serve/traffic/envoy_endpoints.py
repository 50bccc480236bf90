"""Maps an Envoy endpoint (cluster and address) to its replica in the published fleet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lbctl.base.hosts import is_ip, parse_ip
from lbctl.ir.pools import Pool
from lbctl.ir.snapshot import Snapshot
from lbctl.serve.traffic.ledger import ReplicaKey
from lbctl.targets.envoy.cluster_names import pool_name
from lbctl.xds.protocol.load_reports import Place

Places = Mapping[Place, ReplicaKey]
"""Maps one pool's endpoints to its replicas."""
_NO_PLACES: Places = {}


class FleetPlaces:
    """The endpoints of the entire fleet. A pool's endpoints are computed when they are first needed."""

    def __init__(self) -> None:
        self._pools: Mapping[str, Pool] = {}
        self._addresses: Mapping[str, tuple[str, ...]] = {}
        self._places: dict[str, Places] = {}

    def use_fleet(self, fleet: Snapshot) -> None:
        """From now on, look up replicas in this fleet. Unchanged pools keep their endpoints."""
        pools = {pool.name: pool for pool in fleet.topology.pools}
        kept = self._places if self._addresses == fleet.addresses else {}
        self._places = {name: places for name, places in kept.items() if pools.get(name) is self._pools[name]}
        self._pools, self._addresses = pools, fleet.addresses

    def copy(self) -> FleetPlaces:
        """Return a copy, which can be used for another fleet while a thread reads this one."""
        copied = FleetPlaces()
        copied._pools, copied._addresses, copied._places = self._pools, self._addresses, dict(self._places)
        return copied

    def of(self, cluster: str) -> Places:
        """Return the endpoints of the cluster's pool, which may have several clusters; empty for an unknown cluster."""
        name = pool_name(cluster)
        pool = self._pools.get(name)
        if pool is None:
            return _NO_PLACES
        if name not in self._places:
            self._places[name] = dict(_places(pool, self._addresses))
        return self._places[name]


def _places(pool: Pool, addresses: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[Place, ReplicaKey]]:
    """Yield the pool's endpoints.

    If two endpoints have the same address, Envoy uses the first one, which is therefore yielded last.
    """
    for replica in reversed(pool.replicas):
        key, address = ReplicaKey(pool.name, replica.name), replica.address
        if address.path:
            yield (address.path, 0), key
        else:
            yield from (((_spelled(host), address.port), key) for host in addresses.get(address.host, (address.host,)))


def _spelled(host: str) -> str:
    """Return an IPv6 address in Envoy's notation; return any other host unchanged."""
    return str(parse_ip(host)) if ":" in host and is_ip(host) else host

"""The fleet's proxies, each with the configuration composed for it and the configuration that it has applied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from lbctl.api import schema
from lbctl.control.slow_start import Factors
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Proxy, xds_proxies
from lbctl.ir.snapshot import Snapshot, View, drained_of, pools_reached
from lbctl.serve.api import decision_rows
from lbctl.serve.drivers.eligibility import driven
from lbctl.serve.drivers.registry import driver_kind
from lbctl.serve.drivers.supervisor import DriverSupervisor
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.fleet.recent import RecentSnapshots
from lbctl.targets import target, xds_kinds


@dataclass(frozen=True, slots=True)
class FleetProxy:
    """One of the fleet's proxies, with the configuration composed for it and the configuration that it has applied."""

    proxy: Proxy
    """The proxy's entry in the fleet."""
    pools: frozenset[str]
    """The pools to which the proxy may send requests."""
    decided: Snapshot
    """The snapshot that lbctl has composed for the proxy."""
    acknowledged: Snapshot | View | None
    """The snapshot that the proxy has applied; None if it has not applied any, or if this is unknown."""
    connected: bool = True
    """Whether the proxy should have the published fleet, because it is driven or one of its nodes is connected."""
    factors: Factors = field(default_factory=dict)
    """The slow-start factors included in the weights in `decided`."""
    checked: bool = False
    """Whether lbctl runs active health checks for the proxy."""
    nodes: tuple[str, ...] = ()
    """The names used in the proxy's traffic reports: an Envoy's connected nodes, or otherwise the proxy's name."""

    def may_send(self, pool: str, replica: str) -> bool:
        """Return whether the proxy's configuration allows new requests to the replica; True if this is unknown."""
        source = self.acknowledged
        if source is None:
            return True
        if isinstance(source, View):
            return pool in source.pools and _gets_requests(source.pools[pool], replica, source.drained[pool])
        item = next((each for each in source.topology.pools if each.name == pool), None)
        return item is not None and _gets_requests(item, replica, drained_of(item, source))


def fleet_proxies(
    served: PublishedFleet, proxies: Iterable[schema.Proxy], supervisor: DriverSupervisor, recent: RecentSnapshots
) -> Iterator[FleetProxy]:
    """Yield the fleet's proxies that lbctl serves or drives. `proxies` are the rows of `/api/v1/proxies`."""
    topology = served.composed.whole.topology
    composed, accepted = supervisor.composed(), supervisor.accepted()
    rows: dict[str, list[schema.Proxy]] = {}
    for row in proxies:
        if row.proxy is not None and decision_rows.should_have_it(row):
            rows.setdefault(row.proxy, []).append(row)
    shared = [row.last_good for name, items in rows.items() if name not in composed for row in items]
    oldest = recent.oldest(shared)
    for proxy in (*xds_proxies(topology, xds_kinds()).all, *driven(topology)):
        own = composed.get(proxy.name)
        yield FleetProxy(
            proxy,
            pools_reached(topology, proxy),
            own.snapshot if own else served.composed.snapshot,
            accepted.get(proxy.name) if own else oldest,
            connected=proxy.name in rows,
            factors=own.factors if own else {},
            checked=_is_checked(proxy),
            nodes=tuple(row.node for row in rows.get(proxy.name, ()) if target(proxy.kind).served_by_xds),
        )


def _gets_requests(pool: Pool, replica: str, drained: frozenset[str]) -> bool:
    return replica not in drained and any(item.name == replica for item in pool.replicas)


def _is_checked(proxy: Proxy) -> bool:
    kind = driver_kind(proxy.kind)
    return kind is not None and kind.active_checks

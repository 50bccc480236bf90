"""Which proxies may send requests to the pools, with what lbctl decided for each and what it has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lbctl.api import schema
from lbctl.ir.proxies import Proxy, xds_proxies
from lbctl.ir.snapshot import pools_reached
from lbctl.serve.api import decision_rows
from lbctl.serve.api.replica_shares import Carrier
from lbctl.serve.drivers.eligibility import driven
from lbctl.serve.drivers.registry import driver_kind
from lbctl.serve.drivers.supervisor import DriverSupervisor
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.fleet.recent import RecentSnapshots
from lbctl.targets import target, xds_kinds


def carriers(
    served: PublishedFleet, proxies: Iterable[schema.Proxy], supervisor: DriverSupervisor, recent: RecentSnapshots
) -> Iterator[Carrier]:
    """Yield the proxies of the fleet that lbctl serves or drives. `proxies` are the rows of `/api/v1/proxies`."""
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
        yield Carrier(
            proxy,
            pools_reached(topology, proxy),
            own.snapshot if own else served.composed.snapshot,
            accepted.get(proxy.name) if own else oldest,
            connected=proxy.name in rows,
            factors=own.factors if own else {},
            checked=_is_checked(proxy),
            nodes=tuple(row.node for row in rows.get(proxy.name, ()) if target(proxy.kind).served_by_xds),
        )


def _is_checked(proxy: Proxy) -> bool:
    kind = driver_kind(proxy.kind)
    return kind is not None and kind.active_checks

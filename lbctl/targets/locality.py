"""The order in which a proxy uses the replicas of a pool: by priority, then by distance."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.locality import Place, distance
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import View
from lbctl.targets.features import BY_ID


def rank(replica: Replica, pool: Pool, proxy: Proxy) -> tuple[int, int]:
    """Return (priority, distance) of a replica. Replicas with the lowest rank serve first.

    The distance is 0 in the proxy's zone, 1 in its region and 2 elsewhere; without `locality` it is 0 for all replicas.
    """
    if pool.locality is None:
        return replica.priority, 0
    there, here = Place(replica.region, replica.zone), Place(proxy.region, proxy.zone)
    return replica.priority, distance(pool.locality.prefer, here, there)


def placeless(view: View) -> Iterator[Diagnostic]:
    """Yield a warning for each pool with `locality` if the proxy has neither a region nor a zone.

    Envoys with `nodes` are exempt: each reports its own location when it connects.
    """
    if view.proxy.region is not None or view.proxy.zone is not None or view.proxy.nodes:
        return
    for pool in view.pools.values():
        if pool.locality:
            yield Diagnostic(
                BY_ID["pool.locality"].code,
                "this proxy has neither a region nor a zone, so it treats all replicas as equally near",
                path=("pools", pool.name, "locality"),
                hint="set proxies.NAME.region and proxies.NAME.zone",
                severity="warning",
            )

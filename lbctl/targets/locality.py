"""How near a replica is to a proxy: one rule for every kind of proxy."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import View
from lbctl.targets.features import BY_ID


def rank(replica: Replica, pool: Pool, proxy: Proxy) -> tuple[int, int]:
    """Return (priority, distance) of a replica; the lowest rank serves first.

    The distance is 0 in the proxy's zone, 1 in its region and 2 elsewhere; without `locality` it is 0 for all replicas.
    """
    return replica.priority, _distance(replica, pool.locality.prefer, proxy) if pool.locality else 0


def _distance(replica: Replica, prefer: str, proxy: Proxy) -> int:
    """Return 0 in the proxy's zone, 1 in its region, else 2.

    Two regions may each have a zone of the same name, so zones are equal only within one region. Where the proxy or the
    replica names no region, the zone alone decides.
    """
    same_region = proxy.region is not None and replica.region == proxy.region
    unknown = proxy.region is None or replica.region is None
    if prefer == "zone" and proxy.zone is not None and replica.zone == proxy.zone and (same_region or unknown):
        return 0
    return 1 if same_region else 2


def placeless(view: View) -> Iterator[Diagnostic]:
    """Yield a warning for each pool with `locality` if the proxy has neither region nor zone.

    Envoys with `nodes` are exempt: each reports its own place when it connects.
    """
    if view.proxy.region is not None or view.proxy.zone is not None or view.proxy.nodes:
        return
    for pool in view.pools.values():
        if pool.locality:
            yield Diagnostic(
                BY_ID["pool.locality"].code,
                "this proxy has no region and no zone: no replica is nearer than another",
                path=("pools", pool.name, "locality"),
                hint="proxies.NAME.region and proxies.NAME.zone",
                severity="warning",
            )

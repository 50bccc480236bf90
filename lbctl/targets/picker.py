"""Where HAProxy and nginx ask the picker, what they ask, and with which key: the same on both.

Where the fleet names no key file, `lbctl serve` makes a key. A proxy whose files others render, and the pickers of
other members, do not know it.
"""

from __future__ import annotations

from urllib.parse import quote

from lbctl.ir.address import Address
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Proxy, picker_http
from lbctl.ir.routes import Route, busy_statuses
from lbctl.ir.snapshot import View
from lbctl.ir.topology import Topology
from lbctl.targets import target

PAUSE = 1_000
"""Milliseconds for which a proxy asks nothing after the picker was not there or too slow."""
KEY_HEADER = "x-lbctl-pick-key"
"""The header of a question with the key of the picker."""


def http_address(view: View) -> Address:
    """Return the picker's HTTP and UDP address. Raises ValueError for a proxy that asks no picker."""
    if view.picker is None:
        raise ValueError(f"{view.proxy.name} does not query a picker")
    return picker_http(view.picker)


def question(pool: Pool, route: Route, proxy: Proxy) -> str:
    """Return the path and query of the question for a pool, by a route, from this proxy."""
    values = {
        "busy": "1" if busy_statuses(route, pool) else "",
        "regions": ",".join(quote(item, safe="") for item in sorted(route.regions)),
        "region": quote(proxy.region or "", safe=""),
        "zone": quote(proxy.zone or "", safe=""),
    }
    query = "&".join(f"{key}={value}" for key, value in values.items() if value)
    return f"/pick/{quote(pool.name, safe='')}{'?' if query else ''}{query}"


def missing_key(topology: Topology) -> str:
    """Return why questions to the picker have no key; empty if they have one."""
    if topology.control.picker_key_file is not None:
        return ""
    if topology.control.store is not None:
        return "the members of the control plane each have a picker, and all pickers need the same key"
    others = (item for item in topology.proxies if not item.is_written and not target(item.kind).served_by_xds)
    return next((f"serve does not write the configuration of the proxy {item.name}" for item in others), "")

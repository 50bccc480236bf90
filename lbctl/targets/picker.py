"""The address, queries and key with which HAProxy and nginx query the picker.

HAProxy and nginx use the same address, queries and key. If the fleet does not name a key file, `lbctl serve` generates
a key. Proxies whose files are rendered elsewhere, and the pickers of other members, do not have this key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import quote

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.address import Address
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Proxy, ServerTls, picker_http
from lbctl.ir.routes import Route, busy_statuses
from lbctl.ir.snapshot import View
from lbctl.ir.topology import Topology
from lbctl.targets import is_kubernetes, target

PAUSE = 1_000
"""Milliseconds during which a proxy sends no queries after the picker was unreachable or too slow."""
KEY_HEADER = "x-lbctl-pick-key"
"""Header of a query that contains the picker's key."""
FULL_HEADER = "x-lbctl-full"
"""Header of a response that rejects a request because the pool's queue is full or the wait was too long."""


def http_address(view: View) -> Address:
    """Return the picker's HTTP and UDP address. Raises ValueError for a proxy that does not query a picker."""
    if view.picker is None:
        raise ValueError(f"{view.proxy.name} does not query a picker")
    return picker_http(view.picker)


def question(pool: Pool, route: Route, proxy: Proxy, *, waits: bool = False) -> str:
    """Return the path and query string with which this proxy queries the picker about a pool, for a route.

    `waits`: whether this is a request's second query, during which it waits in the pool's queue.
    """
    values = {
        "busy": "1" if busy_statuses(route, pool) else "",
        "regions": ",".join(quote(item, safe="") for item in sorted(route.regions)),
        "region": quote(proxy.region or "", safe=""),
        "zone": quote(proxy.zone or "", safe=""),
        "priority": queue_priority(pool, route),
        "route": quote(route.name, safe="") if route.prompt_limits else "",
        "wait": "1" if waits else "",
    }
    query = "&".join(f"{key}={value}" for key, value in values.items() if value)
    return f"/pick/{quote(pool.name, safe='')}{'?' if query else ''}{query}"


def queue_priority(pool: Pool, route: Route) -> str:
    """Return the route's priority in the pool's picker queue; empty if it is normal or the pool has no queue."""
    return route.queue_priority if pool.balance.queue and route.queue_priority != "normal" else ""


def rejects(view: View) -> bool:
    """Return whether the picker may reject requests because of a queue or limits on prompt tokens."""
    return has_queue(view) or any(route.prompt_limits for route in view.routes.values())


def has_queue(view: View) -> bool:
    """Return whether any pool has a queue at the picker."""
    return any(pool.balance.queue is not None for pool in view.pools.values())


def may_reject(pool: Pool, route: Route) -> bool:
    """Return whether the picker may reject a route's requests to a pool because of its queue or prompt token limits."""
    return pool.balance.pick is not None and bool(pool.balance.queue or route.prompt_limits)


def needs_client(pool: Pool, route: Route) -> bool:
    """Return whether the picker needs client addresses, for the pool's queue or for limits on prompt tokens."""
    queue = pool.balance.queue
    by_client = queue is not None and queue.by == "client_ip"
    return by_client or any(limit.by == "client_ip" for limit in route.prompt_limits)


def missing_key(topology: Topology) -> str:
    """Return the reason why queries to the picker have no key; empty if they have one."""
    if topology.control.picker_key_file is not None:
        return ""
    if topology.control.store is not None:
        return "the members of the control plane each have a picker, and all pickers need the same key"
    with_files = (item for item in topology.proxies if not is_kubernetes(item.kind))
    others = (item for item in with_files if not item.is_written and not target(item.kind).served_by_xds)
    return next((f"serve does not write the configuration of the proxy {item.name}" for item in others), "")


def exposed(bind: Address, tls: ServerTls | None) -> Diagnostic | None:
    """Return LB513 for a picker that any client could use; None if TLS or loopback restricts it."""
    if bind.on_loopback or (tls is not None and tls.client_ca is not None):
        return None
    missing = "without TLS" if tls is None else "without client certificates"
    return Diagnostic(
        "LB513",
        f"the picker on {bind} {missing} would accept prompts from any client, so it does not start",
        path=("control", "picker", "bind"),
        hint="set certificate, key and client_ca in control.xds.tls, bind it to 127.0.0.1, or use --insecure",
    )


def exposed_by_files(topology: Topology) -> Iterator[Diagnostic]:
    """Yield LB513 as a warning if the files expose the picker: `serve` could have another address, or --insecure."""
    bind = topology.control.picker_bind
    found = exposed(bind, topology.control.picker_tls(bind))
    if found is not None and any(pool.balance.pick is not None for pool in topology.pools):
        yield replace(found, severity="warning")

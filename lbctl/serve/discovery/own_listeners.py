"""Rejects replicas whose address belongs to one of the control plane's listeners or to a proxy's admin interface.

Replica sources are outside of lbctl's control. If a replica had the API's address, client requests would reach the API
with a loopback client's permissions.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

from lbctl.base.diagnostics import show
from lbctl.base.hosts import is_loopback
from lbctl.ir.address import Address
from lbctl.ir.pools import Replica
from lbctl.ir.proxies import picker_http
from lbctl.ir.topology import Topology

_WILDCARDS = frozenset({"0.0.0.0", "::"})
_ANY_PORT = 9
"""An arbitrary port for a socket that does not send anything."""


@dataclass(frozen=True, slots=True)
class OwnBinds:
    """The listen addresses given in this process's options; None if the fleet determines them."""

    xds: Address | None = None
    """Address for proxies that connect over TCP."""
    api: Address | None = None
    picker: Address | None = None
    """Address of the picker's gRPC server; its HTTP server uses the next port."""


Listeners = Mapping[int, tuple[tuple[str, str], ...]]
"""Maps each port to the (host, owner) pairs of the listeners that use it."""


def own_listeners(binds: OwnBinds, topology: Topology) -> Listeners:
    """Return the listen addresses of this process and the proxies' admin interfaces."""
    found: dict[int, tuple[tuple[str, str], ...]] = {}
    for place, owner in _places(binds, topology):
        if not place.path:
            found[place.port] = (*found.get(place.port, ()), (place.host, owner))
    return found


def _places(binds: OwnBinds, topology: Topology) -> Iterator[tuple[Address, str]]:
    control = topology.control
    picker = binds.picker or control.picker_bind
    yield binds.xds or control.xds_bind, "the xDS server of lbctl serve"
    yield binds.api or control.api_bind, "the API of lbctl serve"
    yield picker, "the picker"
    if not picker.path:
        yield from ((place, "the picker") for place in (picker_http(picker), replace(picker, port=picker.port + 1)))
    for proxy in topology.proxies:
        yield from ((place, f"the admin interface of {proxy.name}") for place in (proxy.admin, proxy.metrics) if place)


def at_own_listener(replicas: Iterable[object], listeners: Listeners) -> str:
    """Return a short phrase that names a replica whose address is a listener's; empty if there is none."""
    for item in replicas:
        if not isinstance(item, Replica):
            continue
        for host, owner in listeners.get(item.address.port, ()):
            if _is_same(item.address.host, host):
                return f"the replica {show(item.name)} has the address {item.address}, which belongs to {owner}"
    return ""


def _is_same(host: str, listening: str) -> bool:
    if host == listening:
        return True
    if listening in _WILDCARDS:
        return is_loopback(host) or _is_of_this_machine(host)
    return is_loopback(host) and is_loopback(listening)


@lru_cache(maxsize=1024)
def _is_of_this_machine(host: str) -> bool:
    """Return whether an IP address belongs to this machine: connections to it then have the same source address.

    Nothing is sent.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, _ANY_PORT))
        return bool(probe.getsockname()[0] == host)
    return False

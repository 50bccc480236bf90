"""Checks replica addresses that are specified in the fleet or listed in a targets file.

A targets file is written by another program, so it may contain only hosts and ports. It must not contain an address on
which the control plane or a proxy listens, because clients' requests would reach that address with the machine's
privileges.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from lbctl.base.diagnostics import Path, dotted
from lbctl.base.hosts import IPV4, address_of, is_forbidden, is_loopback, is_metadata
from lbctl.base.quantities import Endpoint
from lbctl.compile.context import Context
from lbctl.compile.convert import address
from lbctl.ir.proxies import picker_asked, picker_http
from lbctl.model.node import descend
from lbctl.model.pool import Pool

_HINT = "set the address at which the replica accepts requests"
_WILDCARDS = frozenset({"0.0.0.0", "::"})
_UNUSUAL = frozenset({0, 100, 169, *range(224, 256)})
"""First bytes of all IPv4 addresses that need closer inspection."""


class Listening(NamedTuple):
    """A listener of lbctl or of a proxy in the fleet."""

    host: str
    """Address on which the listener listens. Empty for a Unix socket."""
    owner: str
    """Name of the listener, for use in messages."""
    key: Path
    """Path of the key that sets the address."""


OwnAddresses = dict[tuple[int, str], Listening]
"""Maps each (port, path) pair to the listener of lbctl or of a proxy in the fleet."""


def own_addresses(ctx: Context) -> OwnAddresses:
    """Return the addresses on which lbctl and the fleet's proxies listen."""
    return dict(_own(ctx))


def check_addresses(ctx: Context, name: str, pool: Pool, own: OwnAddresses) -> None:
    """Report replicas with an invalid address (LB122)."""
    from_file = name in ctx.discovered
    for index, replica in enumerate(pool.replicas):
        path = ("pools", name, "replicas", index, "address")
        owner = _owner(ctx, own, replica.address)
        if _is_impossible(replica.address.host):
            ctx.error("LB122", f"no replica can have the address {address(replica.address)}", path, _HINT)
        elif from_file and replica.address.path:
            ctx.error("LB122", "a targets file must not contain a socket", path, _HINT)
        elif owner and from_file:
            ctx.error("LB122", owner, path, _HINT)
        elif owner:
            ctx.warn("LB122", owner, path, _HINT)


def _is_impossible(host: str) -> bool:
    if IPV4.fullmatch(host) and int(host.partition(".")[0]) not in _UNUSUAL:
        return False
    parsed = address_of(host) if host else None
    return bool(host) and (is_metadata(host, parsed) or (parsed is not None and is_forbidden(parsed)))


def _own(ctx: Context) -> Iterator[tuple[tuple[int, str], Listening]]:
    control = ctx.fleet.control
    picker: Path = ("control", "picker", "bind")
    picker_bind = address(control.picker.bind)
    asked = dict.fromkeys((picker_http(picker_bind), picker_asked(picker_bind)))
    places: list[tuple[Endpoint, str, Path]] = [
        (control.xds.bind, "the xDS server of lbctl serve", ("control", "xds", "bind")),
        (control.api.bind, "the API of lbctl serve", ("control", "api", "bind")),
        (control.picker.bind, "the picker", picker),
        *(
            (Endpoint(http.host, http.port), "the picker's HTTP endpoint, on the port after its address", picker)
            for http in asked
        ),
    ]
    for name, proxy in ctx.fleet.proxies.items():
        path: Path = ("proxies", name)
        places += [(proxy.metrics, f"the metrics page of {name}", (*path, "metrics"))] if proxy.metrics else []
        places += [(proxy.admin, f"the admin interface of {name}", (*path, "admin"))] if proxy.admin else []
        socket = Endpoint(path=proxy.runtime_api or "")
        places += [(socket, f"the admin socket of {name}", (*path, "runtime_api"))] if proxy.runtime_api else []
    for place, owner, key in places:
        yield (place.port, place.path), Listening(place.host, owner, key)


def _owner(ctx: Context, own: OwnAddresses, place: Endpoint) -> str:
    """Return the listener at the address and its key, or an empty string."""
    found = own.get((place.port, place.path))
    if found is None:
        return ""
    is_here = is_loopback(place.host) and (found.host in _WILDCARDS or is_loopback(found.host))
    if not (place.path or place.host == found.host or is_here):
        return ""
    node = descend(ctx.source.root, found.key)
    where = f"see {node.position}" if node is not None else "by default"
    return f"{address(place)} is the address of {found.owner}: {dotted(found.key)}, {where}"

"""Checks that each replica has an address that a replica can have: of static ones, and of those that a file lists.

A file of targets is written by another program, so it may name no more than hosts and ports, and none at which the
control plane or a proxy itself listens: requests of clients would reach it with the rights of the machine.
"""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.hosts import IPV4, address_of, is_forbidden, is_loopback, is_metadata
from lbctl.base.quantities import Endpoint
from lbctl.compile.context import Context
from lbctl.compile.convert import address
from lbctl.ir.proxies import picker_http
from lbctl.model.pool import Pool

_HINT = "the address at which the replica serves"
_WILDCARDS = frozenset({"0.0.0.0", "::"})
_UNUSUAL = frozenset({0, 100, 169, *range(224, 256)})
"""The first bytes of all IPv4 addresses that need a closer look."""


OwnAddresses = dict[tuple[int, str], tuple[str, str]]
"""(port, path) → the host and the owner of each place at which lbctl or a proxy of the fleet listens."""


def own_addresses(ctx: Context) -> OwnAddresses:
    """Return where lbctl and the proxies of the fleet listen themselves."""
    return dict(_own(ctx))


def check_addresses(ctx: Context, name: str, pool: Pool, own: OwnAddresses) -> None:
    """Report replicas at addresses that no replica can have (LB122)."""
    from_file = name in ctx.discovered
    for index, replica in enumerate(pool.replicas):
        path = ("pools", name, "replicas", index, "address")
        owner = _owner(own, replica.address)
        if _is_impossible(replica.address.host):
            ctx.error("LB122", f"no replica can have the address {address(replica.address)}", path, _HINT)
        elif from_file and replica.address.path:
            ctx.error("LB122", "a file of targets may name no socket", path, _HINT)
        elif owner and from_file:
            ctx.error("LB122", f"{owner} listens there", path, _HINT)
        elif owner:
            ctx.warn("LB122", f"{owner} listens there", path, _HINT)


def _is_impossible(host: str) -> bool:
    if IPV4.fullmatch(host) and int(host.partition(".")[0]) not in _UNUSUAL:
        return False
    parsed = address_of(host) if host else None
    return bool(host) and (is_metadata(host, parsed) or (parsed is not None and is_forbidden(parsed)))


def _own(ctx: Context) -> Iterator[tuple[tuple[int, str], tuple[str, str]]]:
    control = ctx.fleet.control
    picker = control.picker.bind
    http = picker_http(address(picker))
    own = (control.xds.bind, control.api.bind, picker, Endpoint(http.host, http.port))
    places = [(bind, "lbctl serve") for bind in own]
    for name, proxy in ctx.fleet.proxies.items():
        places += [(proxy.metrics, f"the metrics page of {name}")] if proxy.metrics else []
        places += [(proxy.admin, f"the admin interface of {name}")] if proxy.admin else []
        places += [(Endpoint(path=proxy.runtime_api), f"the admin socket of {name}")] if proxy.runtime_api else []
    for place, owner in places:
        yield (place.port, place.path), (place.host, owner)


def _owner(own: OwnAddresses, place: Endpoint) -> str:
    """Return who listens at the address, or an empty string."""
    host, owner = own.get((place.port, place.path), ("", ""))
    if not owner:
        return ""
    is_here = is_loopback(place.host) and (host in _WILDCARDS or is_loopback(host))
    return owner if place.path or place.host == host or is_here else ""

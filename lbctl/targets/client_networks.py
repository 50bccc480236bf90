"""Lists of clients' addresses: what their 403 says, and networks that mean the same to every proxy.

A client with an IPv4 address may come as an IPv4-mapped IPv6 address. It is one of IPv4 everywhere: networks of IPv4
hold for it, and those of IPv6 do not, `::/0` included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv6Network, ip_network

from lbctl.targets.error_body import error_body

MESSAGE = "clients of this address are not served here"
"""The message of the 403."""
KIND = "forbidden"
"""The type of the 403."""
BODY = error_body(MESSAGE, KIND)
"""The body of the 403."""
_MAPPED = IPv6Network("::ffff:0:0/96")


def unmapped(networks: Iterable[str]) -> Iterator[str]:
    """Yield the networks, those of IPv6 without the IPv4-mapped addresses."""
    for item in networks:
        network = ip_network(item)
        if isinstance(network, IPv6Network) and network.supernet_of(_MAPPED):
            yield from map(str, sorted(network.address_exclude(_MAPPED)))
        else:
            yield item


def mapped(network: str) -> str | None:
    """Return the network of IPv4-mapped IPv6 addresses that is this one of IPv4; None for one of IPv6."""
    parsed = ip_network(network)
    return f"::ffff:{parsed.network_address}/{96 + parsed.prefixlen}" if parsed.version == 4 else None

"""Classifies hosts as addresses or names, as loopback or not, and as addresses that replicas must not have.

The scraper and the resolver reject disallowed addresses at run time, and `lint` reports them in advance. Like the
resolvers of all systems, this module treats a host that consists only of decimal, hexadecimal or octal numbers as an
IPv4 address. This module does not resolve names.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
_METADATA = frozenset({ipaddress.ip_address("fd00:ec2::254"), ipaddress.ip_address("100.100.100.200")})
"""Addresses at which cloud providers serve credentials, in addition to the link-local 169.254.169.254."""
_NAMES = frozenset({"metadata", "metadata.google.internal", "metadata.azure.com", "instance-data"})
"""Host names of cloud providers' metadata services."""
_EMBEDDING = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "::/96")))
"""IPv6 networks that contain an IPv4 address in the last 32 bits."""
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
IPV4 = re.compile(rf"{_OCTET}(?:\.{_OCTET}){{3}}", re.ASCII)
"""Matches the same addresses as `ipaddress`, which is too slow for ten thousand addresses."""
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_HOST_HEADER = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9_.-]+))(?::([0-9]{1,5}))?", re.ASCII)
_PART = re.compile(r"0x[0-9a-f]*|[0-9]+")
_BROADCAST = 0xFFFF_FFFF


def parse_ip(text: str) -> Ip:
    """Parse an IP address without its zone. An IPv4-mapped IPv6 address is converted to IPv4.

    Raises ValueError if `text` is not a complete address.
    """
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def normal_host(host: str) -> str:
    """Return the address without brackets and zone. An IPv4-mapped IPv6 address is converted to IPv4.

    Raises ValueError if it is not an address.
    """
    return str(parse_ip(host.strip("[]")))


@lru_cache(maxsize=1 << 15)
def is_ip(host: str) -> bool:
    """Return whether the host is a valid replica address, which requires no name resolution.

    Brackets and zones are not allowed, because a zone is meaningful only on one machine.
    """
    if ":" not in host:
        return IPV4.fullmatch(host) is not None
    try:
        return ipaddress.IPv6Address(host).scope_id is None
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Return whether the host can be reached only from this machine.

    A name other than localhost may refer to any machine.
    """
    try:
        return parse_ip(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def split_host(header: str) -> tuple[str, str]:
    """Return the name in a `Host` header without brackets, and its port.

    Either part is empty if it is missing or malformed.
    """
    match = _HOST_HEADER.fullmatch(header)
    return (match[1] or match[2], match[3] or "") if match else ("", "")


def is_served_host(header: str, bind: str) -> bool:
    """Return whether a `Host` header is a loopback name, or the host to which a server is bound.

    This prevents DNS rebinding attacks, in which a malicious web page's name resolves to this machine and the browser
    sends that name. Ports are not compared, because the client's port may be forwarded.
    """
    name, _ = split_host(header)
    return bool(name) and (name.lower() == bind.lower() or is_loopback(name))


def from_here(host: str) -> str:
    """Return the address to connect to on this machine for a listener on `host`.

    Clients cannot connect to the unspecified addresses 0.0.0.0 and ::.
    """
    return _EVERYWHERE.get(host, host)


def address_of(host: str) -> Ip | None:
    """Parse `host` (without brackets) as an address in any notation. Return None for a name."""
    try:
        return parse_ip(host)
    except ValueError:
        return _numeric(host.lower())


def is_metadata(host: str, address: Ip | None) -> bool:
    """Return whether the host is a cloud provider's metadata service, which serves the machine's credentials.

    `address` is the result of `address_of(host)`.
    """
    if address is None:
        return host.lower().rstrip(".") in _NAMES
    inner = _embedded(address)
    return address.is_link_local or address in _METADATA or (inner is not None and is_metadata(host, inner))


def is_forbidden(address: Ip) -> bool:
    """Return whether replicas are not allowed to have this address."""
    inner = _embedded(address)
    if inner is not None and is_forbidden(inner):
        return True
    unusable = address.is_link_local or address.is_multicast or address.is_unspecified or int(address) == _BROADCAST
    return unusable or address in _METADATA


def _embedded(address: Ip) -> Ip | None:
    """Return the IPv4 address that receives traffic sent to this IPv6 address, or None if there is none.

    Covers NAT64 (64:ff9b::/96), 6to4 (2002::/16) and IPv4-compatible addresses (::/96).
    """
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address.sixtofour is not None:
        return address.sixtofour
    if any(address in network for network in _EMBEDDING):
        return ipaddress.IPv4Address(int(address) & _BROADCAST)
    return None


def _numeric(host: str) -> Ip | None:
    """Parse one to four numbers. The last number fills the remaining bytes, as in 2852039166 or 0xA9.0xFE.43518."""
    parts = host.rstrip(".").split(".")
    if len(parts) > 4 or not all(_PART.fullmatch(part) for part in parts):
        return None
    try:
        *leading, last = (_number(part) for part in parts)
    except ValueError:
        return None
    if any(number > 0xFF for number in leading) or last >= 256 ** (4 - len(leading)):
        return None
    first = sum(number << (24 - 8 * index) for index, number in enumerate(leading))
    return ipaddress.IPv4Address(first + last)


def _number(part: str) -> int:
    if part.startswith("0x"):
        return int(part[2:] or "0", 16)
    return int(part, 8 if part.startswith("0") else 10)

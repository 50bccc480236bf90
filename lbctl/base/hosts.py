"""Which addresses no replica can have, however they are written: what the scraper and the resolver refuse while they
run, and `lint` finds before.

A host that is digits alone, hexadecimal or octal is an IPv4 address to every system's resolver, so it is one here. It
resolves no names.
"""

from __future__ import annotations

import ipaddress
import re

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
_METADATA = frozenset({ipaddress.ip_address("fd00:ec2::254"), ipaddress.ip_address("100.100.100.200")})
"""Where clouds answer with credentials, besides 169.254.169.254, which is link-local."""
_NAMES = frozenset({"metadata", "metadata.google.internal", "metadata.azure.com", "instance-data"})
"""What clouds call it."""
_PART = re.compile(r"0x[0-9a-f]*|[0-9]+")
_MOST = 0xFFFF_FFFF


def plain(text: str) -> Ip:
    """Without a zone; an IPv4 address in the clothes of IPv6 as itself. ValueError for what is none in full."""
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def literal(host: str) -> Ip | None:
    """The address that `host` is, without brackets, in whatever form; None for a name."""
    try:
        return plain(host)
    except ValueError:
        return _numeric(host.lower())


def is_metadata(host: str, address: Ip | None) -> bool:
    """Whether a cloud may hand out the machine's credentials there. `address`: what `literal` says of the host."""
    if address is None:
        return host.lower().rstrip(".") in _NAMES
    return address.is_link_local or address in _METADATA


def refused(address: Ip) -> bool:
    """Whether no replica can have this address."""
    nobody = address.is_link_local or address.is_multicast or address.is_unspecified or int(address) == _MOST
    return nobody or address in _METADATA


def _numeric(host: str) -> Ip | None:
    """One to four numbers, of which the last fills what is left: 2852039166, 0xA9.0xFE.43518."""
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

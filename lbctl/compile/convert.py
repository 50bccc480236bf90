"""Converts the model's small values to values of the Topology."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TypeVar

from lbctl.base.quantities import Endpoint
from lbctl.ir.address import Address
from lbctl.model.group_by import HeaderKey

_Value = TypeVar("_Value")
_Converted = TypeVar("_Converted")


def maybe(value: _Value | None, convert: Callable[[_Value], _Converted]) -> _Converted | None:
    """Convert `value` unless it is None."""
    return None if value is None else convert(value)


def address(endpoint: Endpoint) -> Address:
    """Convert a parsed address."""
    return Address(endpoint.host, endpoint.port, endpoint.path)


def as_int(value: int | None) -> int | None:
    """Convert a quantity to a plain int.

    Quantities format themselves as in a fleet file, which proxies cannot parse.
    """
    return None if value is None else int(value)


def pairs(mapping: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Convert a map to sorted pairs."""
    return tuple(sorted(mapping.items()))


def networks(listed: Iterable[str] | None) -> tuple[str, ...] | None:
    """Sort and deduplicate networks. IPv4-mapped IPv6 networks are converted to IPv4 networks."""
    return None if listed is None else tuple(sorted({_unmapped(ip_network(item)) for item in listed}))


def _unmapped(network: IPv4Network | IPv6Network) -> str:
    mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
    return str(network if mapped is None or network.prefixlen < 96 else f"{mapped}/{network.prefixlen - 96}")


def prefix(path: str) -> str:
    """Remove a prefix's trailing slash. Prefixes consist of whole segments."""
    return path.rstrip("/") or "/"


def group_by(by: str | HeaderKey) -> tuple[str, str]:
    """Split `by` into its kind and the header name, which is empty for other kinds."""
    return ("header", by.header) if isinstance(by, HeaderKey) else (by, "")

"""Constructors for Envoy's messages: durations, addresses, metadata and packed messages.

The constructors are independent of the fleet.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct

from lbctl.ir.address import Address
from lbctl.targets.envoy.sources import NAMESPACE

BY_ADS: dict[str, object] = {"ads": {}, "resource_api_version": "V3"}
"""`ConfigSource` for resources from the bootstrap's control plane."""


def duration(ms: int) -> Duration:
    """Return a `Duration` of `ms` milliseconds."""
    return Duration(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


def pack(message: Message) -> Any:
    """Return the message in an `Any`. Map fields are sorted by key, so that equal messages have the same bytes."""
    packed = Any()
    packed.Pack(message, deterministic=True)
    return packed


def extension(name: str, message: Message) -> dict[str, object]:
    """Return a `TypedExtensionConfig`, or an older message with the same fields (network and HTTP filters, loggers)."""
    return {"name": name, "typed_config": pack(message)}


def address(target: Address) -> dict[str, object]:
    """Return a `core.v3.Address`."""
    if target.path:
        return {"pipe": {"path": target.path}}
    return {"socket_address": {"address": target.host, "port_value": target.port}}


def admin_address(target: Address) -> dict[str, object]:
    """Return a `core.v3.Address` of an admin interface. Only the owner may connect to a Unix socket."""
    return {"pipe": {"path": target.path, "mode": 0o600}} if target.path else address(target)


def cidr(network: str) -> dict[str, object]:
    """Return a `CidrRange`."""
    parsed = ipaddress.ip_network(network, strict=False)
    return {"address_prefix": str(parsed.network_address), "prefix_len": {"value": parsed.prefixlen}}


def percent(value: float) -> dict[str, object]:
    """Return a `FractionalPercent` with a precision of a ten-thousandth of a percent."""
    return {"numerator": round(value * 10_000), "denominator": "MILLION"}


def header_option(name: str, value: str) -> dict[str, object]:
    """Return a `HeaderValueOption` that replaces a header; Envoy does not substitute `%` in the value."""
    return {
        "header": {"key": name, "value": value.replace("%", "%%")},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
        "keep_empty_value": True,
    }


def metadata(values: Mapping[str, str | bool]) -> dict[str, object]:
    """Return a `core.v3.Metadata` in lbctl's own namespace."""
    return {"filter_metadata": {NAMESPACE: struct(values)}}


def struct(values: Mapping[str, str | bool | None]) -> Struct:
    """Return a `Struct` with these values."""
    message = Struct()
    message.update(values)
    return message

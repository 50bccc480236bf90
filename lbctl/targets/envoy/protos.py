"""Small hands for Envoy's messages: durations, wrapped messages, addresses. Knows nothing of fleets."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct

from lbctl.ir.address import Address
from lbctl.targets.envoy.sources import NAMESPACE

BY_ADS: dict[str, object] = {"ads": {}, "resource_api_version": "V3"}
"""A `ConfigSource`: from the control plane that the bootstrap names."""


def duration(ms: int) -> Duration:
    return Duration(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


def pack(message: Message) -> Any:
    """Map fields in the order of their keys: same message, same bytes."""
    packed = Any()
    packed.Pack(message, deterministic=True)
    return packed


def extension(name: str, message: Message) -> dict[str, object]:
    """A `TypedExtensionConfig`, or one of the older messages of the same form (network and HTTP filters, loggers)."""
    return {"name": name, "typed_config": pack(message)}


def address(where: Address) -> dict[str, object]:
    """A `core.v3.Address`."""
    if where.path:
        return {"pipe": {"path": where.path}}
    return {"socket_address": {"address": where.host, "port_value": where.port}}


def percent(value: float) -> dict[str, object]:
    """A `FractionalPercent`, to a ten-thousandth of a percent."""
    return {"numerator": round(value * 10_000), "denominator": "MILLION"}


def header_option(name: str, value: str) -> dict[str, object]:
    """A `HeaderValueOption` that replaces; `value` is literal: Envoy's `%` substitution is switched off."""
    return {
        "header": {"key": name, "value": value.replace("%", "%%")},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
        "keep_empty_value": True,
    }


def metadata(values: Mapping[str, str | bool]) -> dict[str, object]:
    """A `core.v3.Metadata` with lbctl's own namespace."""
    return {"filter_metadata": {NAMESPACE: struct(values)}}


def struct(values: Mapping[str, str | bool]) -> Struct:
    found = Struct()
    found.update(values)
    return found

"""Conversions of the model's small values to the Topology's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from lbctl.base.quantities import Endpoint
from lbctl.ir.address import Address

_Value = TypeVar("_Value")
_Converted = TypeVar("_Converted")


def maybe(value: _Value | None, convert: Callable[[_Value], _Converted]) -> _Converted | None:
    """Convert `value` unless it is None."""
    return None if value is None else convert(value)


def address(endpoint: Endpoint) -> Address:
    """Convert a parsed address."""
    return Address(endpoint.host, endpoint.port, endpoint.path)


def as_int(value: int | None) -> int | None:
    """Convert a quantity to a plain int: quantities format themselves in the fleet's grammar, which no proxy reads."""
    return None if value is None else int(value)


def pairs(mapping: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Convert a map to sorted pairs."""
    return tuple(sorted(mapping.items()))


def prefix(path: str) -> str:
    """Remove the trailing slash of a prefix, which consists of whole segments."""
    return path.rstrip("/") or "/"

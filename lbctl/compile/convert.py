"""The model's small values as the Topology's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from lbctl.base.quantities import Endpoint
from lbctl.ir.address import Address

_Given = TypeVar("_Given")
_Made = TypeVar("_Made")


def maybe(value: _Given | None, make: Callable[[_Given], _Made]) -> _Made | None:
    """What `make` makes of it, where it was given."""
    return None if value is None else make(value)


def address(endpoint: Endpoint) -> Address:
    return Address(endpoint.host, endpoint.port, endpoint.path)


def whole(value: int | None) -> int | None:
    """A plain int: the model's quantities print themselves in the contract's grammar, which no proxy speaks."""
    return None if value is None else int(value)


def pairs(items: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(items.items()))


def prefix(path: str) -> str:
    """A prefix is of whole segments: its last slash says nothing."""
    return path.rstrip("/") or "/"

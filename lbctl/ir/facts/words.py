"""The words of facts: values in the contract's grammar, with as many digits as tell two of them apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lbctl.base.diagnostics import Path
from lbctl.base.quantities import Duration, Size

Fact = tuple[Path, object]
"""(path below the object, value); None: there is nothing to say."""


def text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def time(value: int | None) -> str:
    """Of milliseconds."""
    return "unlimited" if value is None else str(Duration(value))


def size(value: int) -> str:
    return str(Size(value))


def percent(value: float) -> str:
    return f"{value:.12g}%"


def temperature(value: float) -> str:
    return f"{value:.12g}C"


def most(value: int | None) -> str:
    return "unlimited" if value is None else str(value)


def under(key: str, found: Iterable[Fact]) -> Iterator[Fact]:
    return (((key, *path), value) for path, value in found)


def each(values: Iterable[tuple[str, str]]) -> Iterator[Fact]:
    return (((name,), value) for name, value in values)

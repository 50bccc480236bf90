"""Formats settings as strings in the YAML's syntax, with enough digits to distinguish two values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lbctl.base.diagnostics import Path
from lbctl.base.quantities import Duration, Size

Setting = tuple[Path, object]
"""(path below the object, value) pair, which is omitted if the value is None."""


def text(value: object) -> str:
    """Format a value of any type."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def duration(value: int | None) -> str:
    """Format a duration in milliseconds. None is formatted as unlimited."""
    return "unlimited" if value is None else str(Duration(value))


def size(value: int) -> str:
    """Format a size in bytes."""
    return str(Size(value))


def percent(value: float) -> str:
    """Format a percentage."""
    return f"{value:.12g}%"


def temperature(value: float) -> str:
    """Format a temperature in degrees Celsius."""
    return f"{value:.12g}C"


def limit(value: int | None) -> str:
    """Format a limit. None is formatted as unlimited."""
    return "unlimited" if value is None else str(value)


def nested(key: str, settings: Iterable[Setting]) -> Iterator[Setting]:
    """Nest settings under `key`."""
    return (((key, *path), value) for path, value in settings)


def entries(values: Iterable[tuple[str, str]]) -> Iterator[Setting]:
    """Turn the entries of a map into settings."""
    return (((name,), value) for name, value in values)

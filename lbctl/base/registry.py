"""Registries of named values in a fixed order, which suggest a similar name if a name is mistyped.

A registry is complete when it is constructed and cannot grow later, so that the available names do not depend on
imports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from lbctl.base.diagnostics import did_you_mean, show

T = TypeVar("T")


class UnknownName(KeyError):  # noqa: N818 - named after the problem, like KeyError
    """The registry does not contain a value with this name. `hint` suggests the nearest name, or lists all names."""

    def __init__(self, name: str, names: tuple[str, ...]) -> None:
        super().__init__(name)
        self.name = name
        self.hint = did_you_mean(name, names) or f"one of {', '.join(names)}"

    def __str__(self) -> str:
        return f"unknown name {show(self.name)} ({self.hint})"


class Registry(Generic[T]):
    """Named values in a fixed order."""

    def __init__(self, entries: Mapping[str, T]) -> None:
        self._entries = dict(entries)

    @property
    def names(self) -> tuple[str, ...]:
        """Return all names, in the registry's order."""
        return tuple(self._entries)

    def get(self, name: str) -> T:
        """Return the value with this name. Raises UnknownName."""
        try:
            return self._entries[name]
        except KeyError:
            raise UnknownName(name, self.names) from None

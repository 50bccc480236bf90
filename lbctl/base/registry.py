"""Things that are chosen by name: in one fixed order, and with the nearest name where somebody mistyped.

A registry is complete when it is made. It refuses to grow later: what can be chosen must not depend on what was
imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from lbctl.base.diagnostics import did_you_mean, show

T = TypeVar("T")


class UnknownName(KeyError):  # noqa: N818 - it names what is wrong, as KeyError does
    """Nothing has that name; `hint` says which name was probably meant, or else which there are."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(name)
        self.name = name
        self.hint = did_you_mean(name, known) or f"one of {', '.join(known)}"

    def __str__(self) -> str:
        return f"unknown name {show(self.name)} ({self.hint})"


class Registry(Generic[T]):
    """Named values in the order in which they were given."""

    def __init__(self, entries: Mapping[str, T]) -> None:
        self._entries = dict(entries)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def get(self, name: str) -> T:
        """The value of that name. UnknownName if there is none."""
        try:
            return self._entries[name]
        except KeyError:
            raise UnknownName(name, self.names) from None

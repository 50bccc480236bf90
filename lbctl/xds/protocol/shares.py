"""Tracks which clients have the items of a limited resource.

At the limit, the client with the most items loses one of them.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Shares(Generic[T]):
    """Items of clients.

    Each connection counts as a client, so that many calls on a few connections take little from other clients.
    """

    def __init__(self) -> None:
        self._items: dict[Hashable, dict[T, None]] = {}
        """Maps a client to its items, oldest first."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, owned: tuple[Hashable, T]) -> bool:
        client, item = owned
        return item in self._items.get(client, ())

    def add(self, client: Hashable, item: T) -> None:
        """Add an item of a client."""
        self._items.setdefault(client, {})[item] = None
        self._count += 1

    def discard(self, client: Hashable, item: T) -> bool:
        """Remove an item of a client. Return False if the client does not have the item."""
        items = self._items.get(client)
        if items is None or item not in items:
            return False
        del items[item]
        self._count -= 1
        if not items:
            del self._items[client]
        return True

    def of(self, client: Hashable) -> int:
        """Return the number of items of a client."""
        return len(self._items.get(client, ()))

    def clients(self) -> list[Hashable]:
        """Return the clients that have items."""
        return list(self._items)

    def items(self, client: Hashable) -> list[T]:
        """Return the items of a client, oldest first."""
        return list(self._items.get(client, ()))

    def largest(self) -> Hashable:
        """Return the client with the most items; in a tie, the oldest.

        Raises ValueError if there are no clients.
        """
        return max(self._items, key=self.of)

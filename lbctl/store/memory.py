"""An in-memory store that exists only as long as its process, for `serve --dry-run` and for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from lbctl.store.interface import (
    ABSENT,
    ConflictError,
    FencedError,
    KeyChange,
    Lease,
    LeaseHeldError,
    StoreEntry,
    changes_between,
    matches,
)


@dataclass(slots=True)
class SharedMemory:
    """Contents shared by several handles in one process."""

    entries: dict[str, StoreEntry] = field(default_factory=dict)
    epoch: int = 0
    revision: int = 0
    leader: MemoryStore | None = None
    watchers: set[asyncio.Event] = field(default_factory=set)

    def changed(self) -> None:
        """Wake all watchers."""
        for watcher in self.watchers:
            watcher.set()


class MemoryStore:
    """A StateStore in the memory of this process. `shared`: the content of another handle."""

    def __init__(self, shared: SharedMemory | None = None) -> None:
        self.shared = shared or SharedMemory()
        self._lease: Lease | None = None

    @property
    def location(self) -> str:
        """Location of the state: memory."""
        return "memory"

    async def acquire(self) -> Lease:
        """Acquire the lease. Raises LeaseHeldError if another handle has the lease."""
        if self.shared.leader not in (None, self):
            raise LeaseHeldError(self.location, "another part of this process")
        self.shared.leader = self
        self.shared.epoch += 1
        self._lease = Lease("this process", self.shared.epoch)
        return self._lease

    async def renew(self) -> Lease:
        """Return the lease. Raises FencedError if the lease is lost."""
        if self._lease is None or self.shared.leader is not self or self._lease.epoch != self.shared.epoch:
            raise FencedError("the lease is lost")
        return self._lease

    async def release(self) -> None:
        """Release the lease, if this handle has it."""
        if self.shared.leader is self:
            self.shared.leader = None
        self._lease = None

    async def read(self, prefix: str = "") -> tuple[StoreEntry, ...]:
        """Return all entries with the prefix, sorted by key."""
        return tuple(entry for key, entry in sorted(self.shared.entries.items()) if key.startswith(prefix))

    async def put(self, key: str, value: str, expected_version: str, epoch: int) -> StoreEntry:
        """Write one key. Raises FencedError and ConflictError."""
        self._check(key, expected_version, epoch)
        self.shared.revision += 1
        entry = StoreEntry(key, value, str(self.shared.revision))
        self.shared.entries[key] = entry
        self.shared.changed()
        return entry

    async def delete(self, key: str, expected_version: str, epoch: int) -> None:
        """Delete one key. Raises FencedError and ConflictError."""
        self._check(key, expected_version, epoch)
        self.shared.entries.pop(key, None)
        self.shared.changed()

    async def watch(self, *prefixes: str) -> AsyncIterator[KeyChange]:
        """Yield all entries with one of the prefixes, then every later change."""
        entries: tuple[StoreEntry, ...] = ()
        changed = asyncio.Event()
        self.shared.watchers.add(changed)
        try:
            while True:
                changed.clear()
                before, entries = entries, tuple(item for item in await self.read() if matches(item.key, prefixes))
                for change in changes_between(before, entries):
                    yield change
                await changed.wait()
        finally:
            self.shared.watchers.discard(changed)

    def notes(self) -> tuple[str, ...]:
        """Return no notes, because nothing is repaired in memory."""
        return ()

    async def close(self) -> None:
        """Release the lease."""
        await self.release()

    def _check(self, key: str, expected_version: str, epoch: int) -> None:
        if epoch != self.shared.epoch or self.shared.leader is None:
            raise FencedError(f"epoch {epoch} is outdated: the current one is {self.shared.epoch}")
        entry = self.shared.entries.get(key)
        version = entry.version if entry else ABSENT
        if version != expected_version:
            raise ConflictError(f"{key} has the version {version or 'none'}, not {expected_version or 'none'}")

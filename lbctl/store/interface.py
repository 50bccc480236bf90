"""The interface of a store of the control plane's state: one leader, and keys that only the leader may write.

A store keeps texts under keys. Whoever acquires its lease leads and gets an epoch that no earlier leader had; every
write names that epoch, so that a leader that has lost its lease without noticing can no longer change anything. Every
write also names the version that it replaces (compare-and-set). Keys, certificates and tokens are never stored.

`saved.SavedState` is the layer above, which defines what is stored and in which form.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

MAX_EPOCH = 10**15
"""Epochs of shared stores are milliseconds since 1970, or a little more. Redis counts exactly up to 9 times as many."""
_MAX_SHOWN = 253
"""Characters of a name or a key that people are shown."""
ABSENT = ""
"""The version of a key that does not exist."""


class StoreError(Exception):
    """The store cannot be read or written; nothing of the call is acknowledged. The message is for the log."""


class ConflictError(StoreError):
    """The key has another version than the write expects."""


class FencedError(StoreError):
    """The epoch of a write, or of a renewal, is not that of the store's current leader."""


class StoreUnreachableError(StoreError):
    """The store does not answer; it may do so later."""


class UnusableError(StoreError):
    """The store answers and must not be used: a wrong password, another product's keys, a newer version's state."""


class UnwritableError(StoreError):
    """The disk takes no writes now, for example because it is full."""


class LeaseHeldError(StoreError):
    """Another process holds the lease.

    `holder`: its name. `instance`: the text of its handle of a shared store; None where that is not known.
    """

    def __init__(self, location: str, holder: str, instance: str | None = None) -> None:
        super().__init__(f"{location} is in use by {shown(holder)}")
        self.holder = holder
        self.instance = instance


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write to the store."""

    holder: str
    """Who has it."""
    epoch: int
    """The fencing number: greater than that of every earlier leader."""
    ttl: float | None = None
    """Seconds from the last acquire or renew until the store may give the lease to another process; None: the lease is
    valid as long as its process lives."""


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """One key with its value."""

    key: str
    value: str
    version: str
    """Changes with every write and never repeats; versions can only be compared for equality."""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A change of one key."""

    key: str
    entry: StoreEntry | None
    """The new entry; None where the key was deleted."""


NEARLY_FULL = 0.75
"""The share of a limit from which on operators are told."""


@dataclass(frozen=True, slots=True)
class Usage:
    """How full a part of a store is."""

    name: str
    """The part, for people."""
    size: int
    """Bytes that it has."""
    limit: int | None = None
    """Bytes that it may have; None where the store does not say it."""
    problem: str = ""
    """Why it takes no writes now; empty where it does."""


class StateStore(Protocol):
    """What `serve` needs of a store. Every method raises StoreError where the store does not answer or refuses.

    Prefixes are compared character by character; the empty prefix is every key.
    """

    @property
    def location(self) -> str:
        """Where the state is kept, for logs and messages."""
        ...

    async def acquire(self) -> Lease:
        """Acquire the lease. Raises LeaseHeldError where another handle holds it."""
        ...

    async def renew(self) -> Lease:
        """Extend the lease. Raises FencedError where it is lost."""
        ...

    async def release(self) -> None:
        """Release the lease; without one nothing happens."""
        ...

    async def read(self, prefix: str = "") -> tuple[StoreEntry, ...]:
        """Return a consistent snapshot of all entries with the prefix, sorted by key. Needs no lease."""
        ...

    async def put(self, key: str, value: str, expected_version: str, epoch: int) -> StoreEntry:
        """Write one key; when this returns, the value survives a crash of this process.

        `expected_version`: the current version of the key; ABSENT: the key must not exist. Raises FencedError for an
        epoch that is not the current leader's, ConflictError for another version.
        """
        ...

    async def delete(self, key: str, expected_version: str, epoch: int) -> None:
        """Delete one key. Raises FencedError and ConflictError as `put` does."""
        ...

    def watch(self, *prefixes: str) -> AsyncIterator[KeyChange]:
        """Yield all entries with one of the prefixes (all entries without any), then every later change of one.

        Several changes of a key may be merged into the last one. Needs no lease, and never ends by itself.
        """
        ...

    def notes(self) -> tuple[str, ...]:
        """What was repaired and what was lost when the store was opened, for the log."""
        ...

    async def close(self) -> None:
        """Release the lease and close the handle."""
        ...


@dataclass(frozen=True, slots=True)
class Presence:
    """The announcement of a process that uses a shared store."""

    member: str
    """The member's name."""
    instance: str
    """A random text that no other process has."""
    value: str
    """What the member says about itself, as JSON."""


@runtime_checkable
class SharedStore(StateStore, Protocol):
    """A store that several control planes use at the same time. The lease has a `ttl` and ends by itself.

    `acquire` by the handle that has the lease extends it. An epoch is never given twice, also where the store was
    emptied in between. `read`, `watch` and `put` do not see announcements.
    """

    @property
    def instance(self) -> str:
        """The text of this handle that no other one has."""
        ...

    async def announce(self, member: str, value: str, ttl: float) -> None:
        """Announce this process as `member` for `ttl` seconds, in place of any earlier announcement of that name."""
        ...

    async def members(self) -> tuple[Presence, ...]:
        """Return the announcements that have not expired, sorted by name."""
        ...

    async def leader(self) -> str:
        """Return the member that has the lease; empty where nobody has it."""
        ...

    async def usage(self) -> tuple[Usage, ...]:
        """Return how full the store is, where it has a limit of its own."""
        ...


def shown(text: str) -> str:
    """Return a name or a key of a store for people: others may have written it, of any length."""
    short = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
    return short if short.isprintable() else ascii(short)


def presences(values: Iterable[tuple[str, str]]) -> tuple[Presence, ...]:
    """Parse announcements, (member, `INSTANCE VALUE`), without those that lbctl has not written."""
    parts = ((member, *text.partition(" ")) for member, text in values)
    return tuple(Presence(member, instance, value) for member, instance, space, value in parts if space)


def matches(key: str, prefixes: Iterable[str]) -> bool:
    """Return whether the key has one of the prefixes; without prefixes every key does."""
    prefixes = tuple(prefixes)
    return not prefixes or key.startswith(prefixes)


def changes_between(before: Iterable[StoreEntry], after: Iterable[StoreEntry]) -> tuple[KeyChange, ...]:
    """Return the changes from one snapshot to another, sorted by key."""
    old = {entry.key: entry for entry in before}
    new = {entry.key: entry for entry in after}
    changed = (key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key))
    return tuple(KeyChange(key, new.get(key)) for key in changed)

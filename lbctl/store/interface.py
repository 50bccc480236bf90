"""The interface for a store of the control plane's state: one leader, and keys that only the leader may write.

A store maps keys to strings. The process that acquires its lease becomes the leader and gets an epoch that no earlier
leader had. Every write includes that epoch, so that a leader that has unknowingly lost its lease cannot change
anything. Every write also includes the version that it replaces (compare-and-set). Keys, certificates and tokens are
never stored.

The layer above is `saved.SavedState`, which defines the contents and their format.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

MAX_EPOCH = 10**15
"""Maximum epoch. Epochs of shared stores are milliseconds since 1970, or slightly more. Redis can represent numbers
exactly up to 9 times this number."""
_MAX_SHOWN = 253
"""Maximum length in characters of a name or key in output."""
ABSENT = ""
"""Version of a key that does not exist."""


class StoreError(Exception):
    """The store cannot be read or written, and it is not known whether the call had an effect.

    The message is for the log.
    """


class ConflictError(StoreError):
    """The version of the key differs from the expected version."""


class FencedError(StoreError):
    """The epoch in a write or renewal differs from the current leader's epoch."""


class StoreUnreachableError(StoreError):
    """The store is not responding. A later call may succeed."""


class UnusableError(StoreError):
    """The store must not be used: wrong password, another product's keys, or a newer version's state."""


class UnwritableError(StoreError):
    """The disk is currently rejecting writes, for example because it is full."""


class LeaseHeldError(StoreError):
    """Another process has the lease.

    `holder`: its name. `instance`: its handle's string, for a shared store; None if unknown.
    """

    def __init__(self, location: str, holder: str, instance: str | None = None) -> None:
        super().__init__(f"{location} is in use by {shown(holder)}")
        self.holder = holder
        self.instance = instance


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write to the store."""

    holder: str
    """Name of the process that has the lease."""
    epoch: int
    """Fencing number, which is greater than every earlier leader's epoch."""
    ttl: float | None = None
    """Seconds from the last acquire or renew until the store may give the lease to another process.

    None means that the lease is valid for its process's lifetime.
    """


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """A key and its value."""

    key: str
    value: str
    version: str
    """Changes with every write and never repeats. Versions can only be compared for equality."""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A change of one key."""

    key: str
    entry: StoreEntry | None
    """The new entry; None if the key was deleted."""


NEARLY_FULL = 0.75
"""Share of a limit above which operators are warned."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of one part of a store."""

    name: str
    """Name of the part, for display."""
    size: int
    """Current size in bytes."""
    limit: int | None = None
    """Maximum size in bytes; None if the store does not report it."""
    problem: str = ""
    """Reason why this part of the store is currently rejecting writes; otherwise empty."""


class StateStore(Protocol):
    """The store interface used by `serve`. Every method raises StoreError if the store fails or does not respond.

    Prefixes are compared character by character; the empty prefix matches every key.
    """

    @property
    def location(self) -> str:
        """Location of the state, for logs and messages."""
        ...

    async def acquire(self) -> Lease:
        """Acquire the lease. Raises LeaseHeldError if another handle has the lease."""
        ...

    async def renew(self) -> Lease:
        """Extend the lease. Raises FencedError if the lease has been lost."""
        ...

    async def release(self) -> None:
        """Release the lease, if this handle has it."""
        ...

    async def read(self, prefix: str = "") -> tuple[StoreEntry, ...]:
        """Return a consistent snapshot of all entries with the prefix, sorted by key.

        This does not require the lease.
        """
        ...

    async def put(self, key: str, value: str, expected_version: str, epoch: int) -> StoreEntry:
        """Write one key. Once the method returns, the value survives a crash of this process.

        `expected_version`: the key's current version; ABSENT means that the key must not exist. Raises FencedError if
        the epoch is not the current leader's, and ConflictError if the version differs.
        """
        ...

    async def delete(self, key: str, expected_version: str, epoch: int) -> None:
        """Delete one key. Raises FencedError and ConflictError like `put`."""
        ...

    def watch(self, *prefixes: str) -> AsyncIterator[KeyChange]:
        """Yield all entries with one of the prefixes (without prefixes, all entries), and then every later change.

        Several changes to a key may be merged into the last one. This does not require the lease, and the generator
        never ends on its own.
        """
        ...

    def notes(self) -> tuple[str, ...]:
        """Return what was repaired or lost when the store was opened, for the log."""
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
    """Random text that is unique to the process."""
    value: str
    """Information about the member, as JSON."""


@runtime_checkable
class SharedStore(StateStore, Protocol):
    """A store that several control planes use at the same time. The lease has a `ttl` and expires.

    If `acquire` is called by the handle that has the lease, the lease is extended. An epoch is never assigned twice,
    even if the store is emptied. `read`, `watch` and `put` ignore announcements.
    """

    @property
    def instance(self) -> str:
        """Text that is unique to this handle."""
        ...

    async def announce(self, member: str, value: str, ttl: float) -> None:
        """Announce this process as `member` for `ttl` seconds. This replaces earlier announcements of that name."""
        ...

    async def members(self) -> tuple[Presence, ...]:
        """Return the announcements that have not expired, sorted by name."""
        ...

    async def leader(self) -> str:
        """Return the member that has the lease; empty if it is free."""
        ...

    async def usage(self) -> tuple[Usage, ...]:
        """Return the store's usage, if it has a limit."""
        ...


def shown(text: str) -> str:
    """Format a name or key from a store for output. The string may be written by anyone and may have any length."""
    short = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
    return short if short.isprintable() else ascii(short)


def presences(values: Iterable[tuple[str, str]]) -> tuple[Presence, ...]:
    """Parse announcements, given as (member, `INSTANCE VALUE`), skipping those that were not written by lbctl."""
    parts = ((member, *text.partition(" ")) for member, text in values)
    return tuple(Presence(member, instance, value) for member, instance, space, value in parts if space)


def matches(key: str, prefixes: Iterable[str]) -> bool:
    """Return whether the key has one of the prefixes; True if there are no prefixes."""
    prefixes = tuple(prefixes)
    return not prefixes or key.startswith(prefixes)


def changes_between(before: Iterable[StoreEntry], after: Iterable[StoreEntry]) -> tuple[KeyChange, ...]:
    """Return the changes from one snapshot to the next, sorted by key."""
    old = {entry.key: entry for entry in before}
    new = {entry.key: entry for entry in after}
    changed = (key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key))
    return tuple(KeyChange(key, new.get(key)) for key in changed)

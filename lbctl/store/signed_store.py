"""A shared store whose contents are signed by its control plane's members.

Other parties may have write access to the store's server. A record, announcement or lease without a valid signature is
rejected: it has no effect, it is reported by `refused` and in the log, and the leader's next write replaces it. A
record older than a version that this process has already read is rejected in the same way. Without a key, lbctl neither
signs contents nor verifies signatures.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, cast

from lbctl.runtime import log
from lbctl.store import signing
from lbctl.store.interface import (
    ABSENT,
    MAX_EPOCH,
    ConflictError,
    FencedError,
    KeyChange,
    Lease,
    LeaseHeldError,
    Presence,
    SharedStore,
    StoreEntry,
    UnusableError,
    Usage,
    shown,
)
from lbctl.store.lease import elapsed
from lbctl.store.signing import Envelope, Keyring, Purpose

FORMAT_KEY = "format"
"""Marker of the key space. The marker is not signed, so that every version can read it."""
_WRITTEN_ONCE = ("audit/", "history/files/")
"""Prefixes of keys whose contents never change, so that older contents cannot be replayed."""
_MAX_REFUSED = 1000
"""Maximum number of keys whose rejection is remembered."""
_MAX_SILENCE = 30.0
"""Seconds after which an unchanged announcement is dropped, even if the store still contains it."""
_UNSIGNED = "it is not signed"
_FORGED = "it was not signed with one of this control plane's keys"
_REPLAYED = "it is older than the version read previously"


class SignedStore:
    """A SharedStore that signs its writes to another store, and verifies its reads."""

    def __init__(self, store: SharedStore, keys: Keyring, now: Callable[[], float] = time.time) -> None:
        """Wrap the store. `now` returns seconds since the epoch."""
        self.keys = keys
        self.refused: dict[str, str] = {}
        """Maps a rejected item to the reason. The item is a record's key or `member NAME`."""
        self._store = store
        self._now = now
        self._stamp = 0
        """Highest stamp that this process has read or used."""
        self._stamps: dict[str, int] = {}
        """Maps an item that was read or written to its stamp."""
        self._versions: dict[str, str] = {}
        """Maps the key of a rejected record to its version, which the next write replaces."""
        self._heard: dict[str, tuple[int, float]] = {}
        """Maps a member to the stamp of its last announcement and the time at which it was first read."""

    @property
    def location(self) -> str:
        """Location of the state, for logs and messages."""
        return self._store.location

    @property
    def instance(self) -> str:
        """Text that is unique to this handle."""
        return self._store.instance

    def notes(self) -> tuple[str, ...]:
        """Return what was repaired or lost when the store was opened, for the log."""
        return self._store.notes()

    # ── The lease ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def acquire(self) -> Lease:
        """Acquire the lease.

        Raises LeaseHeldError. Raises UnusableError if a process without a valid key holds the lease, or has written an
        epoch that is too high.
        """
        try:
            lease = await self._store.acquire()
        except LeaseHeldError as held:
            if held.instance is None or self.keys.owns(held.holder, held.instance):
                raise
            raise UnusableError(
                f"{held}, which has none of this control plane's keys: a program that writes to the store, or a member "
                "without control.store.key_file"
            ) from None
        if lease.epoch > MAX_EPOCH:
            await self._store.release()
            raise UnusableError(
                f"{self.location} has the epoch {lease.epoch:.0e}, which no member wrote: delete the epoch "
                "there, or choose another control.store.key_prefix, and restart the members"
            )
        return lease

    async def renew(self) -> Lease:
        """Extend the lease. Raises FencedError if the lease is lost."""
        return await self._store.renew()

    async def release(self) -> None:
        """Release the lease, if there is one."""
        await self._store.release()

    async def leader(self) -> str:
        """Return the member that has the lease; empty if it is free."""
        return shown(await self._store.leader())

    async def usage(self) -> tuple[Usage, ...]:
        """Return the store's usage, if it has a limit."""
        return await self._store.usage()

    # ── The entries ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def read(self, prefix: str = "") -> tuple[StoreEntry, ...]:
        """Return all valid entries with the prefix, sorted by key."""
        entries = await self._store.read(prefix)
        there = {entry.key for entry in entries}
        for key in [key for key in self._versions if key.startswith(prefix) and key not in there]:
            self._accept(key)
        return tuple(opened for entry in entries if (opened := self._opened(entry)) is not None)

    async def put(self, key: str, value: str, expected_version: str, epoch: int) -> StoreEntry:
        """Write one key. A rejected record is treated as absent. Raises FencedError and ConflictError."""
        expected = expected_version or self._versions.get(key, ABSENT)
        stamp = self._next_stamp()
        text = value if key == FORMAT_KEY else signing.seal(self.keys, "record", key, stamp, epoch, value)
        entry = await self._store.put(key, text, expected, epoch)
        if not key.startswith(_WRITTEN_ONCE):
            self._stamps[key] = stamp
        self._accept(key)
        return StoreEntry(key, value, entry.version)

    async def delete(self, key: str, expected_version: str, epoch: int) -> None:
        """Delete one key. Raises FencedError and ConflictError."""
        await self._store.delete(key, expected_version, epoch)

    async def watch(self, *prefixes: str) -> AsyncIterator[KeyChange]:
        """Yield all valid entries with one of the prefixes, then every later change."""
        changes = cast(Any, self._store.watch(*prefixes))
        async with aclosing(changes) as watched:
            async for change in watched:
                if change.entry is None:
                    self._accept(change.key)
                    yield change
                elif (opened := self._opened(change.entry)) is not None:
                    yield KeyChange(change.key, opened)

    async def sign_again(self, epoch: int) -> int:
        """Sign the records without a signature or with an older key, and return their number. Raises StoreError.

        A record that changes in the meantime is skipped, because its writer signs it.
        """
        count = 0
        for entry in await self._store.read() if self.keys.keys else ():
            opened = self._opened(entry)
            sealed = signing.parse_envelope(entry.value)
            is_newest = sealed is not None and signing.is_newest(self.keys, "record", entry.key, sealed)
            if opened is None or is_newest or entry.key == FORMAT_KEY:
                continue
            with suppress(ConflictError, FencedError):
                await self.put(entry.key, opened.value, entry.version, epoch)
                count += 1
        return count

    # ── The members ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def announce(self, member: str, value: str, ttl: float) -> None:
        """Announce this process as `member` for `ttl` seconds."""
        name = _announced(member, self.instance)
        text = signing.seal(self.keys, "announcement", name, self._next_stamp(), 0, value)
        await self._store.announce(member, text, ttl)

    async def members(self) -> tuple[Presence, ...]:
        """Return the valid announcements that have not expired, sorted by name."""
        presences = await self._store.members()
        there = {shown(_member(item.member)) for item in presences}
        for name in [name for name in self.refused if name.startswith(_member("")) and name not in there]:
            self.refused.pop(name)
        return tuple(opened for item in presences if (opened := self._heard_of(item)) is not None)

    async def close(self) -> None:
        """Release the lease and close the handle."""
        await self._store.close()

    # ── Verification ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _opened(self, entry: StoreEntry) -> StoreEntry | None:
        """Return the entry without its signature; None if it is rejected."""
        if entry.key == FORMAT_KEY:
            return entry
        sealed = signing.parse_envelope(entry.value)
        problem = self._problem(entry.key, "record", entry.key, sealed)
        if problem:
            self._refuse(entry.key, problem)
            if entry.key in self._versions or len(self._versions) < _MAX_REFUSED:
                self._versions[entry.key] = entry.version
            return None
        self._accept(entry.key)
        return entry if sealed is None else StoreEntry(entry.key, sealed.text, entry.version)

    def _heard_of(self, presence: Presence) -> Presence | None:
        """Return the announcement without its signature; None if it is rejected or no longer renewed."""
        subject, sealed = _member(presence.member), signing.parse_envelope(presence.value)
        problem = self._problem(subject, "announcement", _announced(presence.member, presence.instance), sealed)
        if problem:
            self._refuse(subject, problem)
            return None
        self._accept(subject)
        if sealed is None or not self.keys.keys:
            return presence if sealed is None else Presence(presence.member, presence.instance, sealed.text)
        stamp, since = self._heard.get(presence.member, (-1, 0.0))
        if stamp != sealed.stamp:
            since = elapsed()
            self._heard[presence.member] = (sealed.stamp, since)
        is_renewed = elapsed() - since < _MAX_SILENCE
        return Presence(presence.member, presence.instance, sealed.text) if is_renewed else None

    def _problem(self, subject: str, purpose: Purpose, name: str, sealed: Envelope | None) -> str:
        """Return the reason why a text is rejected; empty if it is accepted."""
        if not self.keys.keys:
            return ""
        if sealed is None:
            return "" if self.keys.accepts_unsigned else _UNSIGNED
        if not signing.is_valid(self.keys, purpose, name, sealed):
            return _FORGED
        if not subject.startswith(_WRITTEN_ONCE):
            if sealed.stamp < self._stamps.get(subject, 0):
                return _REPLAYED
            self._stamps[subject] = sealed.stamp
        self._stamp = max(self._stamp, sealed.stamp)
        return ""

    def _next_stamp(self) -> int:
        self._stamp = max(self._stamp + 1, int(self._now() * 1000))
        return self._stamp

    def _refuse(self, subject: str, problem: str) -> None:
        subject = shown(subject)
        if self.refused.get(subject) == problem:
            return
        if subject in self.refused or len(self.refused) < _MAX_REFUSED:
            self.refused[subject] = problem
            log.error("store content rejected", key=subject, reason=problem, store=self.location)

    def _accept(self, subject: str) -> None:
        self._versions.pop(subject, None)
        if self.refused.pop(shown(subject), None):
            log.event("store content accepted again", key=shown(subject))


def refusals(refused: Mapping[str, str]) -> str:
    """Return the rejected items with human-readable reasons; empty if there are none."""
    first = next(iter(refused.items()), None)
    if first is None:
        return ""
    more = f", and {len(refused) - 1} more" if len(refused) > 1 else ""
    return f"store content rejected: {first[0]}: {first[1]}{more}"


def _member(name: str) -> str:
    return f"member {name}"


def _announced(member: str, instance: str) -> str:
    return f"{member}\0{instance}"

"""The state of `serve` in any store: acquires the lease, and saves and loads each kind of record.

A record that cannot be read is lost, but this is not fatal: the other records are still used, and `lost` logs the loss.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from lbctl.control.loop_output import LoopOutput
from lbctl.control.overrides import Overrides
from lbctl.control.rollouts import Rollouts
from lbctl.model.load import SourceText
from lbctl.store import history, records
from lbctl.store.history import ActiveRollback, ServedFleet
from lbctl.store.interface import (
    ABSENT,
    ConflictError,
    FencedError,
    KeyChange,
    Lease,
    LeaseHeldError,
    StateStore,
    StoreEntry,
    StoreError,
)
from lbctl.store.lease import Authority
from lbctl.store.records import ChainedAuditRecord, SavedFleet

_FILES = "fleet/files"
_SERVED = "fleet/served"
_DRAINS = "drains"
_LOOP_OUTPUT = "loop_output"
_OVERRIDES = "overrides"
_ROLLOUTS = "rollouts"
_AUDIT = "audit/"
_AUDIT_KEY = re.compile(f"{_AUDIT}[0-9]{{12}}")
_HISTORY = "history/entries"
_HISTORY_FILES = "history/files/"
_ROLLBACK = "rollback"
_AUDIT_KEPT = 5000
"""Maximum number of audit records to keep."""
_MAX_LOSSES = 10
"""Maximum number of messages about lost records to keep."""
_PAUSE = 0.2
"""Seconds between attempts to acquire a lease that another process holds."""
_T = TypeVar("_T")


class SavedState:
    """Saves and loads records. Call `lead` first. If a method raises StoreError, nothing has been saved."""

    def __init__(self, store: StateStore, lost: Callable[[str], None], authority: Authority | None = None) -> None:
        """Use this store. `lost` is called with a message for each record that cannot be read.

        `authority`: nothing is written after it has ended; without an authority, writes are unrestricted.
        """
        self._authority = authority or Authority.unlimited()
        self.lease: Lease | None = None
        self.problem = ""
        """The reason why the last write failed; empty after a success."""
        self._store = store
        self._losses: list[str] = []
        self._log_loss = lost
        self._written: dict[str, StoreEntry] = {}
        self._turn = asyncio.Lock()
        self._last_audit: tuple[int, str] | None = None
        """Number and hash of the newest audit record; None before it is read."""
        self._newest_seen: tuple[int, str] = (0, "")
        """The newest record seen by this process. If the store is emptied, the chain continues from it."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the repairs, losses and security problems since the store was opened."""
        return (*self._store.notes(), *self._losses)

    @property
    def location(self) -> str:
        """Location of the state, for logs and messages."""
        return self._store.location

    async def lead(self, waiting: Callable[[str], None]) -> Lease:
        """Wait until this process has the lease. `waiting` is called once per other holder, with a message."""
        reported = ""
        while True:
            try:
                self.lease = await self._store.acquire()
            except LeaseHeldError as held:
                if held.holder != reported:
                    waiting(f"{held}: waiting for it to exit")
                    reported = held.holder
                await asyncio.sleep(_PAUSE)
                continue
            for note in self._store.notes():
                self._log_loss(note)
            return self.lease

    def take(self, lease: Lease) -> None:
        """Use this newly acquired lease for all further writes."""
        self.lease = lease
        self._written.clear()
        self._last_audit = None

    def lose(self) -> None:
        """Stop writing until `take` is called."""
        self.lease = None

    async def entries(self, prefixes: Iterable[str]) -> tuple[StoreEntry, ...]:
        """Return the stored entries whose keys have these prefixes."""
        return tuple([entry for prefix in prefixes for entry in await self._store.read(prefix)])

    def watch(self, prefixes: Iterable[str]) -> AsyncIterator[KeyChange]:
        """Yield the entries whose keys have these prefixes, then every later change."""
        return self._store.watch(*prefixes)

    async def save_raw(self, key: str, value: str) -> None:
        """Save a value in a format that the caller defines."""
        await self._save(key, value)

    async def close(self) -> None:
        """Release the lease, and close the store."""
        self.lease = None
        await self._store.close()

    # ── The fleet and decisions about it ─────────────────────────────────────────────────────────────────────────────

    async def save_fleet(self, fleet: SavedFleet) -> None:
        """Save the last valid fleet.

        If the save fails halfway, the stored discovery responses are older than the files.
        """
        await self._save(_FILES, records.write_files(fleet))
        await self._save(_SERVED, records.write_served(fleet))

    async def last_fleet(self) -> SavedFleet | None:
        """Load the last valid fleet; None if none was saved."""
        fleet = await self._load(_FILES, records.read_fleet, "the last valid fleet")
        if fleet is None:
            return None
        served = await self._load(_SERVED, records.read_served, "the discovery answers")
        if served is None:
            return fleet
        version, discovered, bad = served
        if bad:
            self._lost(f"the state contained invalid discovery responses, which are lost: {', '.join(bad)}")
        return replace(fleet, discovered=discovered, version=version)

    async def save_drains(self, drains: Mapping[tuple[str, str], float]) -> None:
        """Save all drains: a map from (pool, replica) to the time when the drain began, in seconds since the epoch."""
        await self._save(_DRAINS, records.write_drains(drains))

    async def drains(self) -> dict[tuple[str, str], float]:
        """Load the drains; empty if none were saved."""
        return await self._load(_DRAINS, records.read_drains, "the start times of drains") or {}

    async def save_loop_output(self, output: LoopOutput, at: float) -> int:
        """Save the output of the control loop and return its length.

        `at` is its time in seconds since the epoch.
        """
        text = records.write_loop_output(output, at)
        await self._save(_LOOP_OUTPUT, text)
        return len(text)

    async def loop_output(self) -> tuple[LoopOutput, float] | None:
        """Load the output of the control loop and its time; None if none was saved."""
        return await self._load(_LOOP_OUTPUT, records.read_loop_output, "the weights and ejections")

    async def save_overrides(self, overrides: Overrides) -> None:
        """Save all overrides."""
        await self._save(_OVERRIDES, records.write_overrides(overrides))

    async def overrides(self) -> Overrides:
        """Load the overrides; empty if none were saved."""
        loaded = await self._load(_OVERRIDES, records.read_overrides, "the overrides")
        if loaded is None:
            return ()
        overrides, bad = loaded
        if bad:
            self._lost(f"the state contained invalid overrides, which are lost: {'; '.join(bad)}")
        return overrides

    # ── Rollouts and the audit ────────────────────────────────────────────────────────────────────────────────────────

    async def save_rollouts(self, rollouts: Rollouts) -> None:
        """Save the states of all rollouts."""
        await self._save(_ROLLOUTS, records.write_rollouts(rollouts))

    async def rollouts(self) -> Rollouts:
        """Load the states of the rollouts; empty if none were saved."""
        return await self._load(_ROLLOUTS, records.read_rollouts, "the rollouts") or ()

    async def append_audit(self, at: str, actor: str, action: str, subject: str, reason: str) -> None:
        """Append a record to the audit log, and delete the oldest one beyond the limit. `at`: ISO 8601 in UTC."""
        async with self._turn:
            number, previous = self._last_audit or await self._newest_audit()
            self._last_audit = None  # a failed write may still have been executed
            number += 1
            record = ChainedAuditRecord(number, at, actor, action, subject, reason, previous)
            await self._noting(self._store.put(_audit_key(number), records.write_audit(record), ABSENT, self._epoch))
            self._last_audit = self._newest_seen = number, record.hash
            oldest = await self._entry(_audit_key(number - _AUDIT_KEPT)) if number > _AUDIT_KEPT else None
            if oldest is not None:
                await self._store.delete(oldest.key, oldest.version, self._epoch)

    async def _newest_audit(self) -> tuple[int, str]:
        """Return the newest record's number and hash; the number is valid even if the record cannot be read."""
        entries = [entry for entry in await self._store.read(_AUDIT) if _AUDIT_KEY.fullmatch(entry.key)]
        if not entries:
            return self._newest_seen
        record = self._parsed(entries[-1], records.read_audit, entries[-1].key)
        self._newest_seen = int(entries[-1].key.removeprefix(_AUDIT)), record.hash if record else ""
        return self._newest_seen

    async def audit(self) -> tuple[ChainedAuditRecord, ...]:
        """Load the audit log, oldest record first."""
        loaded = [self._parsed(entry, records.read_audit, entry.key) for entry in await self._store.read(_AUDIT)]
        return tuple(record for record in loaded if record is not None)

    # ── The fleets that were served ──────────────────────────────────────────────────────────────────────────────────

    async def save_history(self, entries: tuple[ServedFleet, ...]) -> None:
        """Save the entries of the history."""
        await self._save(_HISTORY, history.write_entries(entries))

    async def history(self) -> tuple[ServedFleet, ...]:
        """Load the entries of the history, oldest first; empty if none were saved."""
        return await self._load(_HISTORY, history.read_entries, "the history of fleets") or ()

    async def save_history_files(self, digest: str, compressed: str) -> None:
        """Save the compressed files of a fleet in the history."""
        await self._save(_HISTORY_FILES + digest, compressed)
        self._written.pop(_HISTORY_FILES + digest, None)  # it is large, and seldom needed again

    async def history_files(self, digest: str) -> tuple[SourceText, ...] | None:
        """Load the files of a fleet in the history; None if they are missing."""
        return await self._load(_HISTORY_FILES + digest, history.read_texts, f"the files of the fleet {digest[:12]}")

    async def delete_history_files(self, digest: str) -> None:
        """Delete the files of a fleet that is no longer in the history."""
        entry = await self._entry(_HISTORY_FILES + digest)
        if entry is not None:
            await self._store.delete(entry.key, entry.version, self._epoch)

    async def save_rollback(self, rollback: ActiveRollback | None) -> None:
        """Save the active rollback or its absence."""
        await self._save(_ROLLBACK, history.write_rollback(rollback))

    async def rollback(self) -> ActiveRollback | None:
        """Load the active rollback; None if there is none."""
        return await self._load(_ROLLBACK, history.read_rollback, "the rollback")

    # ── One record ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _epoch(self) -> int:
        if self.lease is None:
            raise FencedError(f"this process does not hold the lease on {self.location}")
        if not self._authority.acts:
            raise FencedError(f"the lease on {self.location} expired before it could be renewed")
        return self.lease.epoch

    async def _save(self, key: str, value: str) -> None:
        """Write the value, unless it is already stored.

        Only this process writes. An unknown version is therefore the result of a write by this process whose response
        it has not received.
        """
        epoch = self._epoch
        async with self._turn:
            entry = self._written.pop(key, None) or await self._entry(key)
            if entry is None or entry.value != value:
                try:
                    entry = await self._put(key, value, entry, epoch)
                except ConflictError:
                    entry = await self._put(key, value, await self._entry(key), epoch)
            self._written[key] = entry

    async def write_again(self, keys: Iterable[str]) -> tuple[str, ...]:
        """Rewrite the records that others have changed or deleted since this process wrote them, and return their keys.

        Raises StoreError.
        """
        changed = []
        for key in keys:
            async with self._turn:
                written, epoch = self._written.get(key), self._epoch
                entry = await self._entry(key) if written is not None else None
                if written is not None and (entry is None or entry.value != written.value):
                    with suppress(ConflictError):  # it is being changed right now
                        self._written[key] = await self._put(key, written.value, entry, epoch)
                        changed.append(key)
        return tuple(changed)

    async def _put(self, key: str, value: str, before: StoreEntry | None, epoch: int) -> StoreEntry:
        return await self._noting(self._store.put(key, value, before.version if before else ABSENT, epoch))

    async def _noting(self, write: Awaitable[_T]) -> _T:
        """Return the result of the write, and record whether it has failed.

        A conflict is not a failure of the store.
        """
        try:
            result = await write
        except (ConflictError, FencedError):
            raise
        except StoreError as error:
            self.problem = str(error)
            raise
        self.problem = ""
        return result

    async def _entry(self, key: str) -> StoreEntry | None:
        return next((entry for entry in await self._store.read(key) if entry.key == key), None)

    async def _load(self, key: str, parse: Callable[[str], _T], description: str) -> _T | None:
        entry = await self._entry(key)
        return self._parsed(entry, parse, description) if entry else None

    def _lost(self, message: str) -> None:
        """Log that a record is lost, and keep the message for `notes`."""
        if message not in self._losses and len(self._losses) < _MAX_LOSSES:
            self._losses.append(message)
        self._log_loss(message)

    def _parsed(self, entry: StoreEntry, parse: Callable[[str], _T], description: str) -> _T | None:
        try:
            return parse(entry.value)
        except records.UNREADABLE as error:
            self._lost(f"the state in {self.location} cannot be read and is lost: {description} ({error!r})")
            return None


def _audit_key(number: int) -> str:
    return f"{_AUDIT}{number:012}"

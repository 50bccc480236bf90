"""The history of published fleets, and the active rollback to one of them, if any.

The newest entry is the published fleet. To keep the state small, files are kept only for the latest fleets, up to a
maximum number and size. Entries that could not be saved are saved by the next `save`.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import NamedTuple

from lbctl.base.diagnostics import Diagnostics, did_you_mean, show
from lbctl.model.control_section import without_control
from lbctl.model.load import SourceText, texts
from lbctl.runtime import log
from lbctl.runtime.errors import BadRequestError, NotSavedError
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.fleet.revision import revision_of
from lbctl.store.history import ActiveRollback, Cause, Revision, ServedFleet, write_texts
from lbctl.store.interface import StoreError
from lbctl.store.saved import SavedState

KEPT = 20
"""Maximum number of entries."""
_MAX_BYTES = 16 * 1024 * 1024
"""Maximum total size of compressed files across all entries, in bytes; the published fleet is always kept."""
_MIN_PREFIX = 4
"""Minimum number of characters in a digest prefix."""
SHORT = 12
"""Number of characters of a digest shown in messages."""


@dataclass(frozen=True, slots=True)
class RestoredHistory:
    """The history saved by an earlier process."""

    entries: tuple[ServedFleet, ...] = ()
    """The entries, oldest first."""
    rollback: ActiveRollback | None = None
    """The active rollback; None if there is none."""


class _Unrevised(NamedTuple):
    """Files published from disk, and whether their history entry is new."""

    digest: str
    files: tuple[SourceText, ...]
    is_new: bool


def digest_of(files: Iterable[SourceText]) -> str:
    """Return the digest of a fleet's YAML files, computed from their base names and contents."""
    digest = hashlib.sha256()
    for name, data in sorted((PurePath(text.name).name, text.data) for text in files):
        digest.update(f"{name}\0{len(data)}\0".encode(errors="surrogateescape"))
        digest.update(data)
    return digest.hexdigest()


class FleetHistory:
    """The history of published fleets and the active rollback. `paths`: the paths given on the command line."""

    def __init__(self, paths: Sequence[str], state: SavedState, restored: RestoredHistory) -> None:
        self.entries = restored.entries
        self.rollback = restored.rollback
        self.revision = restored.entries[-1].revision if restored.entries else Revision()
        """The commit of the published files."""
        self._paths = tuple(paths)
        self._state = state
        self._saved: RestoredHistory | None = restored
        """The stored history; None if unknown."""
        self._turn = asyncio.Lock()
        self._texts: dict[str, tuple[SourceText, ...]] = {}
        """Maps each digest to the files that have not been saved yet or that are published by a rollback."""
        self._unrevised: _Unrevised | None = None
        """The files whose commit has not been looked up yet."""
        self._unsaved: dict[str, str] = {}
        """Maps each digest to its compressed files that have not been saved yet."""

    def restore(self, restored: RestoredHistory) -> None:
        """Adopt the history saved by another process, and save all of it again with the next `save`."""
        self.entries, self.rollback = restored.entries, restored.rollback
        self._saved = None

    def take(self, entries: tuple[ServedFleet, ...]) -> None:
        """Adopt entries saved by another process, read-only."""
        self.entries = entries

    def set_rollback(self, rollback: ActiveRollback | None) -> ActiveRollback | None:
        """Set the active rollback (or None), to be saved by the next `save_rollback`; return the previous one."""
        before, self.rollback = self.rollback, rollback
        return before

    def save_all(self) -> None:
        """Save all of this history again with the next `save`, even if nothing has changed."""
        self._saved = None

    @property
    def current(self) -> ServedFleet | None:
        """The published fleet; None before the first one."""
        return self.entries[-1] if self.entries else None

    async def served(self, files: tuple[SourceText, ...], fleet: PublishedFleet, cause: Cause) -> None:
        """Record that these files have been published. If the files are unchanged, no entry is added."""
        digest, compressed = await asyncio.to_thread(lambda: (digest_of(files), write_texts(files)))
        is_new = self.current is None or self.current.digest != digest
        self._unrevised = _Unrevised(digest, files, is_new) if fleet.origin == "files" else None
        if not is_new:
            return
        self.revision = next((item.revision for item in reversed(self.entries) if item.digest == digest), Revision())
        pools = fleet.composed.whole.topology.pools
        entry = ServedFleet(
            digest, time.time(), cause, self.revision, fleet.cached_snapshot.version, len(pools),
            sum(len(pool.replicas) for pool in pools), len(compressed),
        )  # fmt: skip
        self._texts[digest], self._unsaved[digest] = files, compressed
        self.entries = _within_limits((*self.entries, entry))
        kept = {item.digest for item in self.entries}
        self._unsaved = {name: text for name, text in self._unsaved.items() if name in kept}
        self._texts = {name: each for name, each in self._texts.items() if name in kept}

    async def find_revision(self) -> bool:
        """Look up the commit of the most recently published files, and return whether an entry has changed.

        git may take several seconds, and proxies must not wait for it.
        """
        pending, self._unrevised = self._unrevised, None
        if pending is None:
            return False
        revision = await asyncio.to_thread(revision_of, self._paths, pending.files)
        current = self.current
        if current is None or current.digest != pending.digest:
            return False
        self.revision = revision
        if pending.is_new and revision != current.revision:
            self.entries = (*self.entries[:-1], replace(current, revision=revision))
            return True
        return False

    async def pinned(self) -> tuple[SourceText, ...] | None:
        """Return the files published by a rollback; None if there is no rollback.

        The rollback ends when the files on disk change.
        """
        rollback = self.rollback
        if rollback is None:
            return None
        files = await self.files(rollback.digest)
        if files is None:
            log.warn("rollback ended: its files have been lost", digest=rollback.digest[:SHORT])
        elif await self.on_disk() == rollback.ignored:
            return files
        else:
            log.event("rollback ended: the files have changed", digest=rollback.digest[:SHORT])
        self.rollback = None
        return None

    async def on_disk(self) -> str:
        """Return the digest of the files currently on disk."""
        return await asyncio.to_thread(lambda: digest_of(texts(self._paths, Diagnostics())))

    async def shared_on_disk(self) -> str:
        """Return the digest of the files currently on disk without `control`, which may differ between members."""
        return await asyncio.to_thread(lambda: digest_of(map(without_control, texts(self._paths, Diagnostics()))))

    def find(self, prefix: str | None) -> ServedFleet:
        """Return the newest entry whose digest has this prefix; without a prefix, the entry before the published fleet.

        Raises BadRequestError if no fleet matches (with similar digests) or if several fleets match.
        """
        current = self.current
        others: dict[str, ServedFleet] = {}
        for item in reversed(self.entries):
            if current is not None and item.digest != current.digest:
                others.setdefault(item.digest, item)
        if prefix is None:
            if not others:
                raise BadRequestError("no earlier fleet has been saved")
            return next(iter(others.values()))
        if current is not None and len(prefix) >= _MIN_PREFIX and current.digest.startswith(prefix.lower()):
            raise BadRequestError(f"{current.digest[:SHORT]} is already the published fleet")
        matching = [item for digest, item in others.items() if digest.startswith(prefix.lower())]
        if len(matching) == 1 and len(prefix) >= _MIN_PREFIX:
            return matching[0]
        raise BadRequestError(_no_entry(prefix, [item.digest for item in matching], list(others)))

    async def files(self, digest: str) -> tuple[SourceText, ...] | None:
        """Return an entry's files; None if they are missing from the state. Raises StoreError."""
        if digest not in self._texts:
            loaded = await self._state.history_files(digest)
            if loaded is None or digest_of(loaded) != digest:
                return None
            self._texts[digest] = loaded
        return self._texts[digest]

    async def files_for_rollback(self, entry: ServedFleet) -> tuple[SourceText, ...]:
        """Return an entry's files.

        Raises BadRequestError if they are missing from the state, and NotSavedError if the state cannot be read.
        """
        try:
            files = await self.files(entry.digest)
        except StoreError as error:
            raise NotSavedError(f"nothing was changed, because the state cannot be read: {error}") from error
        if files is None:
            raise BadRequestError(f"the state no longer contains the files of {entry.digest[:SHORT]}")
        return files

    async def save_rollback(self) -> None:
        """Save the active rollback. Raises NotSavedError."""
        try:
            await self.save()
        except StoreError as error:
            raise NotSavedError(f"nothing was changed, because the rollback cannot be saved: {error}") from error

    async def save(self) -> None:
        """Save the changes, and delete files to which no entry refers. Raises StoreError.

        Changes made while it is waiting for the store are saved by the next call.
        """
        async with self._turn:
            wanted, before = RestoredHistory(self.entries, self.rollback), self._saved
            for digest, compressed in list(self._unsaved.items()):
                await self._state.save_history_files(digest, compressed)
                self._unsaved.pop(digest, None)
            if before is None or wanted.entries != before.entries:
                await self._state.save_history(wanted.entries)
                kept = {item.digest for item in wanted.entries}
                for digest in {item.digest for item in (before.entries if before else ())} - kept:
                    await self._state.delete_history_files(digest)
            if before is None or wanted.rollback != before.rollback:
                await self._state.save_rollback(wanted.rollback)
            if self._saved is before:
                self._saved = wanted
            needed = {*self._unsaved, *({self.rollback.digest} if self.rollback else ())}
            self._texts = {digest: files for digest, files in self._texts.items() if digest in needed}


def _within_limits(entries: tuple[ServedFleet, ...]) -> tuple[ServedFleet, ...]:
    kept = list(entries[-KEPT:])
    while len(kept) > 1 and sum({item.digest: item.size for item in kept}.values()) > _MAX_BYTES:
        del kept[0]
    return tuple(kept)


def _no_entry(prefix: str, matching: Sequence[str], digests: Sequence[str]) -> str:
    newest = ", ".join(digest[:SHORT] for digest in (matching or digests)[:5]) or "none"
    if matching and len(prefix) < _MIN_PREFIX:
        return f"a digest needs at least {_MIN_PREFIX} characters; {show(prefix)} is a prefix of {newest}"
    if matching:
        return f"{show(prefix)} is a prefix of several digests: {newest}"
    near = did_you_mean(prefix[:SHORT], [digest[:SHORT] for digest in digests])
    hint = f" ({near})" if near else ""
    return f"no saved fleet has the digest {show(prefix)}{hint}; earlier fleets, newest first: {newest}"

"""Reads the fleet's files at startup, after changes and on request, and passes them on for publication.

A valid fleet is published; otherwise, the published fleet remains unchanged and the reason is logged. No failure here
ends the process or removes the configuration from proxies.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path

from lbctl.base.diagnostics import Diagnostics
from lbctl.lint.ignores import silenced_by_comments
from lbctl.model.load import SourceText
from lbctl.runtime import log
from lbctl.runtime.errors import CannotListenError
from lbctl.serve.fleet.history import FleetHistory
from lbctl.serve.fleet.inputs import Origin
from lbctl.serve.fleet.live import LiveFleet
from lbctl.serve.fleet.log import ChangeObserver, PublicationLog, ReloadLog, ReloadOutcome
from lbctl.serve.fleet.publisher import PublishResult
from lbctl.serve.fleet.reader import Writers
from lbctl.serve.fleet.reload import FleetReloader, LoadOutcome, is_unchanged, relocated
from lbctl.serve.fleet.saver import FleetSaver
from lbctl.serve.fleet.served_files import LeaderFiles, OwnFiles
from lbctl.serve.fleet.watch import FleetWatcher
from lbctl.serve.metrics.instruments import ReloadStatus
from lbctl.store.audit import CONTROL_PLANE, AuditLog
from lbctl.store.history import ActiveRollback, Cause, ServedFleet
from lbctl.store.records import SavedFleet
from lbctl.store.saved import SavedState
from lbctl.targets.load import Loaded
from lbctl.xds.build.snapshot_cache import UnsoundError

OnFleet = Callable[[Loaded, bool], Awaitable[None]]
"""Called with the first fleet: with False before its resources are built, and with True when they can be served."""
_FILES = Cause(CONTROL_PLANE)
"""Cause given for publications after a change to the files."""


class Reconciler:
    """Reads the files, and passes them to the live fleet, which publishes them."""

    def __init__(
        self,
        paths: tuple[str, ...],
        live: LiveFleet,
        watch: FleetWatcher,
        saver: FleetSaver,
        publications: PublicationLog,
        reloads: ReloadLog,
        state: SavedState,
        audit: AuditLog,
        history: FleetHistory,
        observer: ChangeObserver,
        state_directory: str | None = None,
        *,
        writers: Writers = "this process",
    ) -> None:
        """Create the reconciler; it does not have a fleet before `start`.

        `state_directory`: the state directory, if the fleet does not set it. `writers`: the possible writers of the
        state.
        """
        self._paths = paths
        self._live = live
        self._watch = watch
        self._audit = audit
        self._history = history
        self._on_fleet: OnFleet | None = None
        self._observer = observer
        self._shared = writers != "this process"
        self._reloader = FleetReloader(paths, state_directory, writers=writers)
        self._reloads = reloads
        self._publications = publications
        self._saver = saver
        self._state = state
        self._watched: Mapping[Path, str] = {}
        self._own_files = OwnFiles(history, publications, saver)
        self._files: OwnFiles | LeaderFiles = self._own_files

    @property
    def last_reload(self) -> ReloadOutcome | None:
        """Result of the last read; None before the first one."""
        return self._reloads.last

    async def start(self, saved: SavedFleet | None, on_fleet: OnFleet) -> None:
        """Publish the fleet in the files, or the `saved` fleet if it is still valid.

        `on_fleet` is called with the first fleet, either now or after a later read.
        """
        self._on_fleet = on_fleet
        self._saver.restored(saved)
        async with self._live.turn:
            restored: LoadOutcome | None = None
            if saved is not None and not await asyncio.to_thread(is_unchanged, saved, self._paths):
                restored = await self._restore(saved)
            await self._read(False, _FILES)
            if self._live.served is None and saved is not None:
                await self._serve_saved(restored or await self._restore(saved))
            await self._files.record()
        await self._find_revision()

    def serve_leader(self, leader: SavedFleet | None) -> None:
        """From the next read on, publish the leader's fleet; None publishes the files until the leader has a fleet."""
        self._files = LeaderFiles(self._history, self._publications, leader)

    @property
    def fleet(self) -> SavedFleet | None:
        """The published fleet in its saved form; None before the first one."""
        return self._files.leader or self._saver.fleet

    async def lead(self) -> None:
        """From now on, publish this process's own files, and save the published fleet."""
        async with self._live.turn:
            leader, self._files = self._files.leader, self._own_files
            await self._saver.save_all(leader)
            await self._read(False, _FILES)
            await self._files.save(None)
            await self._files.record()
        await self._find_revision()

    async def reload(self, *, allow_shrink: bool = False, cause: Cause = _FILES) -> None:
        """Read the files now. `allow_shrink`: accept any loss of replicas and keys."""
        async with self._live.turn:
            await self._read(allow_shrink, cause)
            await self._files.record()
        await self._find_revision()

    async def rollback(self, entry: ServedFleet, cause: Cause, *, allow_shrink: bool = False) -> ReloadOutcome:
        """Publish the files in this entry until the files on disk change. The files on disk may be invalid.

        If the entry's files cannot be published, the result states the reason, and nothing changes. Raises
        BadRequestError if the state no longer contains the files, and NotSavedError if a restart would lose the
        rollback.
        """
        async with self._live.turn:
            try:
                return await self._roll_back(entry, cause, allow_shrink)
            finally:
                await self._files.record()

    async def _find_revision(self) -> None:
        """Look up the commit of the published fleet without holding the lock, because proxies must not wait for git."""
        if await self._history.find_revision():
            async with self._live.turn:
                await self._files.save(None)

    # ── Reading and serving; the caller holds the lock ───────────────────────────────────────────────────────────────

    async def _restore(self, saved: SavedFleet) -> LoadOutcome:
        own = replace(saved, texts=await self._placed(saved.texts))
        restored = await asyncio.to_thread(self._reloader.restore, own)
        if restored.loaded is not None:
            self._reloader.accept(restored)
            await self._live.continue_from(restored.loaded)
        return restored

    async def _serve_saved(self, restored: LoadOutcome) -> None:
        if restored.loaded is None:
            log.error("the saved fleet can no longer be used", reason=restored.refused)
            log.findings(item for item in restored.diagnostics if item.severity == "error")
            return
        self._watch.watch_files({**restored.files, **self._watched})
        try:
            await self._serve(restored.loaded, restored, "state", False, _FILES)
        except UnsoundError as error:
            log.error("the saved fleet can no longer be used")
            log.findings(error.problems)
            return
        log.warn("the files cannot be published: using the last valid fleet from the state", state=self._state.location)

    async def _read(self, allow_shrink: bool, cause: Cause) -> None:
        try:
            pinned = await self._files.pinned()
            placed = None if pinned is None else await self._placed(pinned)
            outcome = await self._load(placed, allow_shrink or self._files.confirms_losses)
            self._watch_files(outcome.files)
            await self._serve_outcome(outcome, allow_shrink, cause)
        except CannotListenError:
            raise
        except Exception as error:  # noqa: BLE001 -- files that we fail on must not end what is served
            self._reloads.failed(error)

    async def _placed(self, files: tuple[SourceText, ...]) -> tuple[SourceText, ...]:
        """Return stored files.

        In files from a shared store, directories are replaced with this process's directories.
        """
        return await asyncio.to_thread(relocated, files, self._paths) if self._shared else files

    def _watch_files(self, files: Mapping[Path, str]) -> None:
        self._watched = files
        self._watch.watch_files(files)

    async def _load(self, pinned: tuple[SourceText, ...] | None, allow_shrink: bool) -> LoadOutcome:
        """Read either the files on disk or the given files."""
        return await asyncio.to_thread(
            self._reloader.load, allow_shrink=allow_shrink, discovered=self._live.accepted.apply, pinned=pinned
        )

    async def _roll_back(self, entry: ServedFleet, cause: Cause, allow_shrink: bool) -> ReloadOutcome:
        files = await self._placed(await self._history.files_for_rollback(entry))
        outcome = await self._load(files, allow_shrink)
        if outcome.loaded is None:
            result: ReloadStatus = "refused" if outcome.shrink else "invalid"
            return ReloadOutcome(result, outcome.diagnostics, time.time(), outcome.refused, outcome.shrink)
        on_disk = await self._history.on_disk()
        rollback = ActiveRollback(entry.digest, on_disk, time.time(), cause.actor, cause.reason)
        await self._audit.record(cause.actor, cause.action, entry.digest, cause.reason)
        before = self._history.set_rollback(rollback if entry.digest != on_disk else None)
        watched = self._watched
        try:
            await self._history.save_rollback()
            self._watch_files(outcome.files)
            await self._serve_loaded(outcome.loaded, outcome, allow_shrink, cause)
        except BaseException as error:
            self._history.set_rollback(before)
            self._saver.save_later()  # the state may already contain the new one
            self._watch_files(watched)
            if not isinstance(error, UnsoundError):
                raise
            reason = "a proxy would reject its configuration"
            return ReloadOutcome("unsound", (*outcome.diagnostics, *error.problems), time.time(), reason)
        self._observer.rolled_back(rollback)
        assert self.last_reload is not None, "the published fleet was recorded"
        return self.last_reload

    async def _serve_outcome(self, outcome: LoadOutcome, allow_shrink: bool, cause: Cause) -> None:
        if outcome.loaded is None:
            result: ReloadStatus = "refused" if outcome.shrink else "invalid"
            self._reloads.refused(result, outcome.diagnostics, outcome.refused or "", outcome.shrink)
            await self._serve_running(outcome)
            return
        try:
            await self._serve_loaded(outcome.loaded, outcome, allow_shrink, cause)
        except UnsoundError as error:
            self._reloads.refused(
                "unsound", (*outcome.diagnostics, *error.problems), "a proxy would reject their configuration"
            )

    async def _serve_loaded(self, loaded: Loaded, outcome: LoadOutcome, allow_shrink: bool, cause: Cause) -> None:
        """Publish the fleet that was read, and record the result. If this raises UnsoundError, nothing has changed."""
        rollback = self._files.rollback
        published = await self._serve(loaded, outcome, self._files.origin, allow_shrink, cause)
        served = self._live.served
        unsupported = Diagnostics()
        unsupported.silence(silenced_by_comments(outcome.saved.texts if outcome.saved else ()))
        unsupported.extend(served.unsupported if served else ())
        self._reloads.served((*outcome.diagnostics, *unsupported), rollback, new=published.new)

    async def _serve_running(self, outcome: LoadOutcome) -> None:
        """After a rejection, publish the running fleet with its changed certificates, key files or target files."""
        served = self._live.served
        if outcome.running is None or served is None:
            return
        try:
            await self._serve(outcome.running, outcome, served.origin, False, _FILES)
        except UnsoundError as error:
            log.findings(error.problems)

    async def _serve(
        self, loaded: Loaded, outcome: LoadOutcome, origin: Origin, allow_shrink: bool, cause: Cause
    ) -> PublishResult:
        """Serve a fleet. Raises UnsoundError if a proxy would reject it, in which case nothing has changed."""
        if self._on_fleet is not None:
            await self._on_fleet(loaded, False)
        published = await self._live.publish_files(loaded, origin, allow_shrink=allow_shrink)
        self._reloader.accept(outcome)
        on_fleet, self._on_fleet = self._on_fleet, None
        if on_fleet is not None:
            await on_fleet(loaded, True)
        self._publications.served(published, origin)
        served = self._live.served
        if served is not None and outcome.saved is not None:
            await self._files.served(outcome.saved.texts, served, cause)
        await self._files.save(outcome.saved)
        return published

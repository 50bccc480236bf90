"""Brings the published fleet in line with the files, with discovery, with the control loop and with the clock.

A change is published, or the published fleet stays as it is and the reason is logged. No failure here ends the process
or takes the configuration away from proxies. Changes are handled one at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Protocol

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.compile.files import read_regular
from lbctl.ir.weight import Weight
from lbctl.model.load import texts
from lbctl.model.text import MAX_BYTES
from lbctl.serve import log
from lbctl.serve.errors import CannotListenError, NotSavedError
from lbctl.serve.fleet import key_files
from lbctl.serve.fleet.publisher import Origin, PublishedFleet, Publisher, PublishResult
from lbctl.serve.fleet.reload import LoadOutcome, Reloader
from lbctl.serve.fleet.watch import FleetWatcher
from lbctl.serve.metrics.instruments import Metrics, ReloadStatus
from lbctl.serve.state.audit import CONTROL_PLANE, AuditLog
from lbctl.serve.state.interface import StoreError
from lbctl.serve.state.records import SavedFleet
from lbctl.serve.state.saved import SavedState
from lbctl.targets.load import Loaded
from lbctl.xds.build.snapshot_cache import UnsoundError

_MAX_NAMED = 8
"""The most replicas that one line of the log names."""
_SAVE_AGAIN = 5.0
"""Seconds until a save that has failed is tried again."""


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """The result of one reading of the files."""

    result: ReloadStatus
    """What came of it."""
    diagnostics: tuple[Diagnostic, ...]
    """The findings in the files."""
    at: float
    """When the files were read, in seconds since the epoch."""
    refused: str | None = None
    """Why the fleet of the files is not served; None where it is."""
    shrink: tuple[Diagnostic, ...] = ()
    """The losses of replicas and keys that an operator has to confirm."""

    @property
    def valid(self) -> bool:
        """Whether the fleet of the files is served."""
        return self.result in ("published", "unchanged")


class ChangeObserver(Protocol):
    """Is notified of every change, after it has happened."""

    def published(self, served: PublishedFleet, result: PublishResult, cause: str) -> None:
        """Handle the end of a publication, whether or not it has changed the fleet."""

    def reloaded(self, result: ReloadResult) -> None:
        """Handle the end of a reading of the files."""


class Reconciler:
    """Reads the files, and publishes what they and the other inputs of a fleet lead to."""

    def __init__(
        self,
        paths: tuple[str, ...],
        publisher: Publisher,
        watch: FleetWatcher,
        metrics: Metrics,
        state: SavedState,
        audit: AuditLog,
        on_fleet: Callable[[Loaded, bool], Awaitable[None]],
        observer: ChangeObserver,
    ) -> None:
        """Start without a fleet.

        `on_fleet` is called twice with the first fleet: with False before its snapshot is built, and with True when it
        can be served.
        """
        self.last_reload: ReloadResult | None = None
        self._paths = paths
        self._publisher = publisher
        self._watch = watch
        self._metrics = metrics
        self._state = state
        self._audit = audit
        self._on_fleet: Callable[[Loaded, bool], Awaitable[None]] | None = on_fleet
        self._observer = observer
        self._reloader = Reloader(paths)
        self._lock = asyncio.Lock()
        self._logged: frozenset[Diagnostic] = frozenset()
        self._saved: SavedFleet | None = None
        self._newest: SavedFleet | None = None
        """The files that are served, which a failed save may not have saved yet."""
        self._unsaved = False
        self._unrecorded: tuple[str, str] | None = None
        """Version and cause of a publication that the audit log does not have yet."""
        self._followed: Mapping[Path, str] = {}
        self._drains = dict(publisher.drained)

    async def start(self, saved: SavedFleet | None) -> None:
        """Serve the fleet of the files, or else the `saved` one where that is still valid."""
        self._saved = saved
        async with self._lock:
            restored: LoadOutcome | None = None
            if saved is not None and not await asyncio.to_thread(_is_unchanged, saved, self._paths):
                restored = await self._restore(saved)
            await self._read(allow_shrink=False)
            if self._publisher.served is None and saved is not None:
                await self._serve_saved(restored or await self._restore(saved))
            await self._record()

    async def reload(self, *, allow_shrink: bool = False) -> None:
        """Read the files now. `allow_shrink`: accept any loss of replicas and keys."""
        async with self._lock:
            await self._read(allow_shrink)
            await self._record()

    async def refresh(self, cause: str, *, save: bool = True) -> None:
        """Publish the same fleet again, with the discovered replicas, weights, overrides and drains of now.

        `cause` is logged. `save=False`: nothing has changed that a restart must know.
        """
        async with self._lock:
            try:
                result = await self._publisher.refresh()
            except UnsoundError as error:
                log.findings(error.problems)
                log.error("what is served stays as it is", because_of=cause)
                return
            except Exception:  # noqa: BLE001 -- what changed must not end what is served
                log.failure("lbctl itself failed; what is served stays as it is", because_of=cause)
                return
            self._report(result, cause)
            if save:
                await self._save(None)

    async def save_again(self) -> None:
        """Repeat a save that has failed, as on a full disk, until the task is cancelled."""
        while True:
            await asyncio.sleep(_SAVE_AGAIN)
            if self._unsaved:
                async with self._lock:
                    await self._save(None)

    # ── Reading and serving; the caller holds the lock ───────────────────────────────────────────────────────────────

    async def _restore(self, saved: SavedFleet) -> LoadOutcome:
        restored = await asyncio.to_thread(self._reloader.restore, saved)
        if restored.loaded is not None:
            self._reloader.accept(restored)
            self._publisher.set_baseline(restored.loaded.compiled.topology)
            await self._publisher.build_previous(restored.loaded)
        return restored

    async def _serve_saved(self, restored: LoadOutcome) -> None:
        if restored.loaded is None:
            log.error("the fleet that the state has saved can no longer be used", reason=restored.refused)
            log.findings(item for item in restored.diagnostics if item.severity == "error")
            return
        self._watch.follow({**restored.files, **self._followed})
        try:
            await self._serve(restored.loaded, restored, "state", allow_shrink=False)
        except UnsoundError as error:
            log.error("the fleet that the state has saved can no longer be used")
            log.findings(error.problems)
            return
        log.warn("the files cannot be served: serving the last good fleet of the state", state=self._state.location)

    async def _read(self, allow_shrink: bool) -> None:
        try:
            outcome = await asyncio.to_thread(
                self._reloader.load, allow_shrink=allow_shrink, discovered=self._publisher.accepted.apply
            )
            self._followed = outcome.files
            self._watch.follow(outcome.files)
            await self._serve_outcome(outcome, allow_shrink)
        except CannotListenError:
            raise
        except Exception as error:  # noqa: BLE001 -- files that we fail on must not end what is served
            stays = "; what is served stays as it is" if self._publisher.served else ""
            log.failure(f"lbctl itself failed on these files{stays}")
            message = f"lbctl itself failed on these files ({type(error).__name__}: {error}); the log has more"
            self._note("unsound", (Diagnostic("LB999", message),), "lbctl itself failed on them")

    async def _serve_outcome(self, outcome: LoadOutcome, allow_shrink: bool) -> None:
        if outcome.loaded is None:
            result: ReloadStatus = "refused" if outcome.shrink else "invalid"
            self._refuse(result, outcome.diagnostics, outcome.refused or "", outcome.shrink)
            await self._serve_running(outcome)
            return
        try:
            published = await self._serve(outcome.loaded, outcome, "files", allow_shrink)
        except UnsoundError as error:
            self._refuse("unsound", (*outcome.diagnostics, *error.problems), "a proxy would refuse what they lead to")
            return
        served = self._publisher.served
        diagnostics = (*outcome.diagnostics, *(served.unsupported if served else ()))
        log.findings(item for item in diagnostics if item not in self._logged)
        self._logged = frozenset(diagnostics)
        if self.last_reload is not None and not self.last_reload.valid:
            log.event("the files are served again")
        self._note("published" if published.new else "unchanged", diagnostics)

    def _refuse(
        self, result: ReloadStatus, diagnostics: tuple[Diagnostic, ...], cause: str, shrink: tuple[Diagnostic, ...] = ()
    ) -> None:
        """Log why the files are not served: errors each time, other diagnostics once."""
        log.findings(item for item in diagnostics if item.severity == "error" or item not in self._logged)
        self._logged |= frozenset(diagnostics)
        stays = "; what is served stays as it is" if self._publisher.served else ""
        log.error(f"the files are not served{stays}", reason=cause)
        self._note(result, diagnostics, cause, shrink)

    async def _serve_running(self, outcome: LoadOutcome) -> None:
        """Serve the running fleet with changed certificates, key files or target files where the new one is refused."""
        served = self._publisher.served
        if outcome.running is None or served is None:
            return
        try:
            await self._serve(outcome.running, outcome, served.origin, allow_shrink=False)
        except UnsoundError as error:
            log.findings(error.problems)

    async def _serve(self, loaded: Loaded, outcome: LoadOutcome, origin: Origin, allow_shrink: bool) -> PublishResult:
        """Serve a fleet. Raises UnsoundError where a proxy would reject it; nothing has changed then."""
        if self._on_fleet is not None:
            await self._on_fleet(loaded, False)
        published = await self._publisher.serve(loaded, origin, allow_shrink=allow_shrink)
        self._reloader.accept(outcome)
        on_fleet, self._on_fleet = self._on_fleet, None
        if on_fleet is not None:
            await on_fleet(loaded, True)
        cause = "the files" if origin == "files" else "the state"
        self._report(published, cause)
        served = self._publisher.served
        if published.new and served is not None:
            self._unrecorded = served.cached_snapshot.version, cause
        await self._save(outcome.saved)
        return published

    async def _record(self) -> None:
        """Append what was published last to the audit log."""
        if self._unrecorded is not None:
            (version, cause), self._unrecorded = self._unrecorded, None
            with suppress(NotSavedError):  # the files are served, also where the state cannot be written
                await self._audit.record(CONTROL_PLANE, "publish", version, cause)

    def _note(
        self, result: ReloadStatus, diagnostics: tuple[Diagnostic, ...], refused: str | None = None,
        shrink: tuple[Diagnostic, ...] = (),
    ) -> None:  # fmt: skip
        unusable_key_files = sum(item.code in (key_files.UNUSABLE, key_files.SHRUNK) for item in diagnostics)
        warnings = sum(item.severity == "warning" for item in diagnostics)
        self._metrics.reloaded(result, warnings, unusable_key_files)
        self.last_reload = ReloadResult(result, diagnostics, time.time(), refused, shrink)
        self._observer.reloaded(self.last_reload)

    # ── What must outlive the process ────────────────────────────────────────────────────────────────────────────────

    async def _save(self, saved: SavedFleet | None) -> None:
        """Save the served fleet, the answers of discovery and the drains, as far as they have changed."""
        served = self._publisher.served
        if served is None:
            return
        answers = self._publisher.accepted.answers
        self._newest = files = saved or self._newest or self._saved
        fleet = replace(files, discovered=answers, version=served.cached_snapshot.version) if files else None
        try:
            if fleet is not None and fleet != self._saved:
                await self._state.save_fleet(fleet)
                self._saved = fleet
            if served.composed.drains != self._drains:
                await self._state.save_drains(served.composed.drains)
                self._drains = dict(served.composed.drains)
        except StoreError as error:
            if not self._unsaved:
                log.error(f"not saved for a restart, and tried again every {_SAVE_AGAIN:g} s: {error}")
            self._unsaved = True
        else:
            if self._unsaved:
                log.event("what is served is saved for a restart again")
            self._unsaved = False

    # ── The log ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _report(self, published: PublishResult, cause: str) -> None:
        served = self._publisher.served
        if published.new and served is not None:
            message = "published" if self._publisher.send else "would be published"
            names = ",".join(published.names) or None
            log.event(
                message, version=served.cached_snapshot.version, because_of=cause, **published.changed, names=names
            )
        for pool, weights in published.weights.items():
            log.event("weights", pool=pool, moved=_named_weights(weights))
        if served is not None:
            self._observer.published(served, published, cause)


def _named_weights(weights: Mapping[str, Weight]) -> str:
    """Return the first replicas with their new weights, and the number of further ones, for the log."""
    named = [f"{name}={weight.rate:.4g}" for name, weight in islice(weights.items(), _MAX_NAMED)]
    return " ".join(named) + (f" and {len(weights) - _MAX_NAMED} more" if len(weights) > _MAX_NAMED else "")


def _is_unchanged(saved: SavedFleet, paths: tuple[str, ...]) -> bool:
    """Whether the files are the saved ones, so that the fleet need not be compared with the saved one."""
    if tuple(texts(paths, Diagnostics())) != saved.texts:
        return False
    with suppress(OSError):
        return all(read_regular(Path(path), MAX_BYTES) == content for path, content in saved.targets.items())
    return False

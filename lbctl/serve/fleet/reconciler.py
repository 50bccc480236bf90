"""What a change of the files, of a name or of the time does: it is served, or what is served stays, and why is told.

Nothing that goes wrong here ends the process or empties what proxies have. One change at a time.
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
from lbctl.serve.errors import CannotListenError
from lbctl.serve.fleet import key_files
from lbctl.serve.fleet.publisher import Origin, PublishedFleet, Publisher, PublishResult
from lbctl.serve.fleet.reload import Outcome, Reloader
from lbctl.serve.fleet.watch import Watch
from lbctl.serve.metrics.instruments import Metrics, Result
from lbctl.serve.state.interface import StoreError
from lbctl.serve.state.records import SavedFleet
from lbctl.serve.state.saved import SavedState
from lbctl.targets.load import Loaded
from lbctl.xds.build.snapshot_cache import UnsoundError

_NAMED = 8
"""Replicas that one line of the log names."""


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """How the files stood when they were last read. `at`: seconds since the epoch; `refused`: why they are not served;
    `shrink`: the losses of replicas and keys that wait to be confirmed."""

    result: Result
    diagnostics: tuple[Diagnostic, ...]
    at: float
    refused: str | None = None
    shrink: tuple[Diagnostic, ...] = ()

    @property
    def valid(self) -> bool:
        return self.result in ("published", "unchanged")


class ChangeObserver(Protocol):
    """Is called with every change, after it has happened."""

    def published(self, served: PublishedFleet, result: PublishResult, cause: str) -> None:
        """A publication has ended, whether or not it has changed something."""

    def reloaded(self, result: ReloadResult) -> None:
        """The files were read."""


class Reconciler:
    """`opened` is called twice for the first fleet: before its edition is built (False), and when it is there to be
    served (True)."""

    def __init__(
        self,
        paths: tuple[str, ...],
        publisher: Publisher,
        watch: Watch,
        metrics: Metrics,
        state: SavedState,
        opened: Callable[[Loaded, bool], Awaitable[None]],
        observer: ChangeObserver,
    ) -> None:
        self.reading: ReloadResult | None = None
        self._paths = paths
        self._publisher = publisher
        self._watch = watch
        self._metrics = metrics
        self._state = state
        self._opened: Callable[[Loaded, bool], Awaitable[None]] | None = opened
        self._observer = observer
        self._reloader = Reloader(paths)
        self._turn = asyncio.Lock()
        self._told: frozenset[Diagnostic] = frozenset()
        self._kept: SavedFleet | None = None
        self._followed: Mapping[Path, str] = {}
        self._drains = dict(publisher.drained)

    async def begin(self, kept: SavedFleet | None) -> None:
        """Serves the files' fleet, else the one that was `kept`, if that one can be; StoreError is for the caller."""
        self._kept = kept
        async with self._turn:
            restored: Outcome | None = None
            if kept is not None and not await asyncio.to_thread(_is_as_kept, kept, self._paths):
                restored = await self._restore(kept)
            await self._read(allow_shrink=False)
            if self._publisher.served is None and kept is not None:
                await self._serve_kept(restored or await self._restore(kept))

    async def reload(self, *, allow_shrink: bool = False) -> None:
        """Reads the files now."""
        async with self._turn:
            await self._read(allow_shrink)

    async def refresh(self, why: str, *, keep: bool = True) -> None:
        """Serves the same fleet as it is now, by discovery, by the clock and by what was decided. `keep`: what must
        outlive the process may have changed."""
        async with self._turn:
            try:
                sent = await self._publisher.refresh()
            except UnsoundError as error:
                log.findings(error.problems)
                log.error("what is served stays as it is", because_of=why)
                return
            except Exception:  # noqa: BLE001 -- what changed must not end what is served
                log.failure("lbctl itself failed; what is served stays as it is", because_of=why)
                return
            self._tell(sent, why)
            if keep:
                await self._keep(None)

    # ── Reading and serving; the caller has the turn ─────────────────────────────────────────────────────────────────

    async def _restore(self, kept: SavedFleet) -> Outcome:
        restored = await asyncio.to_thread(self._reloader.restore, kept)
        if restored.loaded is not None:
            self._reloader.accept(restored)
            self._publisher.expect(restored.loaded.compiled.topology)
            await self._publisher.recall(restored.loaded)
        return restored

    async def _serve_kept(self, restored: Outcome) -> None:
        if restored.loaded is None:
            log.error("the fleet that the state has kept can no longer be used", reason=restored.refused)
            log.findings(item for item in restored.diagnostics if item.severity == "error")
            return
        self._watch.follow({**restored.files, **self._followed})
        try:
            await self._serve(restored.loaded, restored, "state", allow_shrink=False)
        except UnsoundError as error:
            log.error("the fleet that the state has kept can no longer be used")
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
            await self._judge(outcome, allow_shrink)
        except CannotListenError:
            raise
        except Exception as error:  # noqa: BLE001 -- files that we fail on must not end what is served
            stays = "; what is served stays as it is" if self._publisher.served else ""
            log.failure(f"lbctl itself failed on these files{stays}")
            words = f"lbctl itself failed on these files ({type(error).__name__}: {error}); the log has more"
            self._note("unsound", (Diagnostic("LB999", words),), "lbctl itself failed on them")

    async def _judge(self, outcome: Outcome, allow_shrink: bool) -> None:
        if outcome.loaded is None:
            result: Result = "refused" if outcome.shrink else "invalid"
            self._refuse(result, outcome.diagnostics, outcome.refused or "", outcome.shrink)
            await self._serve_running(outcome)
            return
        try:
            sent = await self._serve(outcome.loaded, outcome, "files", allow_shrink)
        except UnsoundError as error:
            self._refuse("unsound", (*outcome.diagnostics, *error.problems), "a proxy would refuse what they lead to")
            return
        served = self._publisher.served
        found = (*outcome.diagnostics, *(served.losses if served else ()))
        log.findings(item for item in found if item not in self._told)
        self._told = frozenset(found)
        if self.reading is not None and not self.reading.valid:
            log.event("the files are served again")
        self._note("published" if sent.new else "unchanged", found)

    def _refuse(
        self, result: Result, found: tuple[Diagnostic, ...], why: str, shrink: tuple[Diagnostic, ...] = ()
    ) -> None:
        """Errors are logged each time, the rest once."""
        log.findings(item for item in found if item.severity == "error" or item not in self._told)
        self._told |= frozenset(found)
        stays = "; what is served stays as it is" if self._publisher.served else ""
        log.error(f"the files are not served{stays}", reason=why)
        self._note(result, found, why, shrink)

    async def _serve_running(self, outcome: Outcome) -> None:
        """The fleet that runs has new certificates, keys or targets, whatever its YAML has become."""
        served = self._publisher.served
        if outcome.running is None or served is None:
            return
        try:
            await self._serve(outcome.running, outcome, served.origin, allow_shrink=False)
        except UnsoundError as error:
            log.findings(error.problems)

    async def _serve(self, loaded: Loaded, outcome: Outcome, origin: Origin, allow_shrink: bool) -> PublishResult:
        """UnsoundError: it would be refused by a proxy, and nothing has changed."""
        if self._opened is not None:
            await self._opened(loaded, False)
        sent = await self._publisher.serve(loaded, origin, allow_shrink=allow_shrink)
        self._reloader.accept(outcome)
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened(loaded, True)
        self._tell(sent, "the files" if origin == "files" else "the state")
        await self._keep(outcome.kept)
        return sent

    def _note(
        self, result: Result, found: tuple[Diagnostic, ...], refused: str | None = None,
        shrink: tuple[Diagnostic, ...] = (),
    ) -> None:  # fmt: skip
        kept = sum(item.code in (key_files.UNUSABLE, key_files.SHRUNK) for item in found)
        self._metrics.reloaded(result, sum(item.severity == "warning" for item in found), kept)
        self.reading = ReloadResult(result, found, time.time(), refused, shrink)
        self._observer.reloaded(self.reading)

    # ── What must outlive the process ────────────────────────────────────────────────────────────────────────────────

    async def _keep(self, kept: SavedFleet | None) -> None:
        """The fleet that is served, what discovery has answered, and the drains: what of it has changed."""
        served = self._publisher.served
        if served is None:
            return
        answers = self._publisher.accepted.answers
        known = kept or self._kept
        whole = replace(known, discovered=answers, version=served.edition.version) if known else None
        try:
            if whole is not None and whole != self._kept:
                await self._state.save_fleet(whole)
                self._kept = whole
            if served.composed.drains != self._drains:
                await self._state.save_drains(served.composed.drains)
                self._drains = dict(served.composed.drains)
        except StoreError as error:
            log.error(f"not kept for a restart: {error}")

    # ── The log ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _tell(self, sent: PublishResult, why: str) -> None:
        served = self._publisher.served
        if sent.new and served is not None:
            words = "published" if self._publisher.send else "would be published"
            names = ",".join(sent.names) or None
            log.event(words, version=served.edition.version, because_of=why, **sent.changed, names=names)
        for pool, weights in sent.weights.items():
            log.event("weights", pool=pool, moved=_moved(weights))
        if served is not None:
            self._observer.published(served, sent, why)


def _moved(weights: Mapping[str, Weight]) -> str:
    """The first replicas with the weights that they have now, and how many more there are."""
    named = [f"{name}={weight.rate:.4g}" for name, weight in islice(weights.items(), _NAMED)]
    return " ".join(named) + (f" and {len(weights) - _NAMED} more" if len(weights) > _NAMED else "")


def _is_as_kept(kept: SavedFleet, paths: tuple[str, ...]) -> bool:
    """Whether the files hold what was last served, so that there is nothing to judge them against."""
    if tuple(texts(paths, Diagnostics())) != kept.texts:
        return False
    with suppress(OSError):
        return all(read_regular(Path(place), MAX_BYTES) == data for place, data in kept.targets.items())
    return False

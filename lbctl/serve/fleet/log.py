"""Reports publications and reloads in the log, the metrics, the events and the audit log."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.weight import Weight
from lbctl.runtime import log
from lbctl.runtime.errors import NotSavedError
from lbctl.serve.fleet import key_files
from lbctl.serve.fleet.history import SHORT
from lbctl.serve.fleet.inputs import Origin
from lbctl.serve.fleet.publisher import PublishedFleet, Publisher, PublishResult
from lbctl.serve.metrics.instruments import Metrics, ReloadStatus
from lbctl.store.audit import CONTROL_PLANE, AuditLog
from lbctl.store.history import ActiveRollback

_PUBLISHED_FOR = {"files": "the files", "state": "the state", "history": "a rollback", "leader": "the leader"}
"""Maps each origin of a fleet to the reason for its publication, for the log, the events and the audit log."""
_MAX_NAMED = 8
"""Maximum number of replicas named in a log line."""


@dataclass(frozen=True, slots=True)
class ReloadOutcome:
    """The outcome of reading the files once."""

    result: ReloadStatus
    """The outcome of the reload."""
    diagnostics: tuple[Diagnostic, ...]
    """The findings in the files."""
    at: float
    """Time at which the files were read, in seconds since the epoch."""
    refused: str | None = None
    """Reason why the fleet in the files is not published; None if it is."""
    shrink: tuple[Diagnostic, ...] = ()
    """Losses of replicas and keys that an operator must confirm."""

    @property
    def valid(self) -> bool:
        """Whether the fleet in the files is published."""
        return self.result in ("published", "unchanged")


class ChangeObserver(Protocol):
    """Is notified of every change after it has happened."""

    def published(self, served: PublishedFleet, result: PublishResult, cause: str) -> None:
        """Called after a publication, regardless of whether it changed the fleet."""

    def reloaded(self, result: ReloadOutcome) -> None:
        """Called after the files have been read."""

    def rolled_back(self, rollback: ActiveRollback) -> None:
        """Called after a rollback has published an earlier fleet instead of the files."""


class PublicationLog:
    """Logs publications. New fleets are also recorded in the audit log."""

    def __init__(self, publisher: Publisher, observer: ChangeObserver, audit: AuditLog) -> None:
        self._publisher = publisher
        self._observer = observer
        self._audit = audit
        self._unrecorded: tuple[str, str] | None = None
        """Version and cause of a publication that has not been added to the audit log yet."""

    def served(self, published: PublishResult, origin: Origin) -> None:
        """Report a published fleet, which `record` will add to the audit log."""
        cause = _PUBLISHED_FOR[origin]
        self.report(published, cause)
        served = self._publisher.served
        if published.new and served is not None:
            self._unrecorded = served.cached_snapshot.version, cause

    def report(self, published: PublishResult, cause: str) -> None:
        """Log the changes, and notify the observer."""
        served = self._publisher.served
        if published.new and served is not None:
            message = "published" if self._publisher.sends else "would be published"
            names = ",".join(published.names) or None
            log.event(
                message, version=served.cached_snapshot.version, because_of=cause, **published.changed, names=names
            )
        for pool, weights in published.weights.items():
            log.event("weights", pool=pool, moved=_named_weights(weights))
        if served is not None:
            self._observer.published(served, published, cause)

    def leave_out(self) -> None:
        """Omit the last publication from the audit log, because the leader records it."""
        self._unrecorded = None

    async def record(self) -> None:
        """Add the last publication to the audit log."""
        if self._unrecorded is not None:
            (version, cause), self._unrecorded = self._unrecorded, None
            with suppress(NotSavedError):  # the files are served even if the state cannot be written
                await self._audit.record(CONTROL_PLANE, "publish", version, cause)


def stays(publisher: Publisher) -> str:
    """Return the last part of a message about an unpublished change; empty if nothing has been published yet."""
    return "; the published fleet does not change" if publisher.served else ""


def _named_weights(weights: Mapping[str, Weight]) -> str:
    """Format the new weights of the first few replicas, and the number of remaining replicas, for the log."""
    named = [f"{name}={weight.rate:.4g}" for name, weight in islice(weights.items(), _MAX_NAMED)]
    return " ".join(named) + (f" and {len(weights) - _MAX_NAMED} more" if len(weights) > _MAX_NAMED else "")


class ReloadLog:
    """Keeps the last result, and logs a recurring diagnostic only once."""

    def __init__(self, publisher: Publisher, metrics: Metrics, observer: ChangeObserver) -> None:
        self.last: ReloadOutcome | None = None
        """The last result; None before the files have been read."""
        self._publisher = publisher
        self._metrics = metrics
        self._observer = observer
        self._logged: frozenset[Diagnostic] = frozenset()

    def served(self, diagnostics: tuple[Diagnostic, ...], rollback: ActiveRollback | None, *, new: bool) -> None:
        """Log that a fleet has been published.

        `rollback`: the rollback that published it, if any; `new`: whether it differs from the last one.
        """
        log.findings(item for item in diagnostics if item not in self._logged)
        self._logged = frozenset(diagnostics)
        if rollback is not None:
            log.warn("the files are ignored until they change", because_of="a rollback", actor=rollback.actor)
            self.note("rolled_back", diagnostics, _ignored(rollback))
            return
        if self.last is not None and not self.last.valid:
            log.event("the files are published again")
        self.note("published" if new else "unchanged", diagnostics)

    def refused(
        self, result: ReloadStatus, diagnostics: tuple[Diagnostic, ...], cause: str, shrink: tuple[Diagnostic, ...] = ()
    ) -> None:
        """Log why the files are not published: errors every time, and other diagnostics once."""
        log.findings(item for item in diagnostics if item.severity == "error" or item not in self._logged)
        self._logged |= frozenset(diagnostics)
        log.error(f"the files are not published{stays(self._publisher)}", reason=cause)
        self.note(result, diagnostics, cause, shrink)

    def failed(self, error: Exception) -> None:
        """Log an internal exception caused by the files. The caller handles the exception."""
        log.failure(f"internal error while processing these files{stays(self._publisher)}")
        message = f"internal error while processing these files ({type(error).__name__}: {error}); see the log"
        self.note("unsound", (Diagnostic("LB999", message),), "lbctl itself failed while processing them")

    def note(
        self, result: ReloadStatus, diagnostics: tuple[Diagnostic, ...], refused: str | None = None,
        shrink: tuple[Diagnostic, ...] = (),
    ) -> None:  # fmt: skip
        """Store the result as the most recent one, and count it.

        `refused`: the reason why these files are not published.
        """
        unusable_key_files = sum(item.code in (key_files.UNUSABLE, key_files.SHRUNK) for item in diagnostics)
        warnings = sum(item.severity == "warning" for item in diagnostics)
        self._metrics.reloaded(result, warnings, unusable_key_files)
        self.last = ReloadOutcome(result, diagnostics, time.time(), refused, shrink)
        self._observer.reloaded(self.last)


def _ignored(rollback: ActiveRollback) -> str:
    """Return the reason why the files are not published while a rollback is active."""
    reason = f": {rollback.reason}" if rollback.reason else ""
    return f"ignored until they change, because {rollback.actor} rolled back to {rollback.digest[:SHORT]}{reason}"

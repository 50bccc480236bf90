"""What was published and why: in the log, in the events and in the audit log."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import islice

from lbctl.ir.weight import Weight
from lbctl.runtime import log
from lbctl.runtime.errors import NotSavedError
from lbctl.serve.fleet.inputs import Origin
from lbctl.serve.fleet.publisher import Publisher, PublishResult
from lbctl.serve.fleet.reload_result import ChangeObserver
from lbctl.store.audit import CONTROL_PLANE, AuditLog

_PUBLISHED_FOR = {"files": "the files", "state": "the state", "history": "a rollback", "leader": "the leader"}
"""Origin of a fleet → the cause of its publication, for the log, the events and the audit log."""
_MAX_NAMED = 8
"""The most replicas that one line of the log names."""


class PublicationLog:
    """Says what was published. Fleets that were served anew are in the audit log too."""

    def __init__(self, publisher: Publisher, observer: ChangeObserver, audit: AuditLog) -> None:
        self._publisher = publisher
        self._observer = observer
        self._audit = audit
        self._unrecorded: tuple[str, str] | None = None
        """Version and cause of a publication that the audit log does not have yet."""

    def served(self, published: PublishResult, origin: Origin) -> None:
        """Report a fleet that was served, which `record` then adds to the audit log."""
        cause = _PUBLISHED_FOR[origin]
        self.report(published, cause)
        served = self._publisher.served
        if published.new and served is not None:
            self._unrecorded = served.cached_snapshot.version, cause

    def report(self, published: PublishResult, cause: str) -> None:
        """Log what has changed, and tell the observer."""
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
        """Keep what was published last out of the audit log, since its leader records it."""
        self._unrecorded = None

    async def record(self) -> None:
        """Append what was published last to the audit log."""
        if self._unrecorded is not None:
            (version, cause), self._unrecorded = self._unrecorded, None
            with suppress(NotSavedError):  # the files are served, also where the state cannot be written
                await self._audit.record(CONTROL_PLANE, "publish", version, cause)


def stays(publisher: Publisher) -> str:
    """Return the end of a message about a change that is not published: empty where nothing is served yet."""
    return "; what is served stays as it is" if publisher.served else ""


def _named_weights(weights: Mapping[str, Weight]) -> str:
    """Return the first replicas with their new weights, and the number of further ones, for the log."""
    named = [f"{name}={weight.rate:.4g}" for name, weight in islice(weights.items(), _MAX_NAMED)]
    return " ".join(named) + (f" and {len(weights) - _MAX_NAMED} more" if len(weights) > _MAX_NAMED else "")

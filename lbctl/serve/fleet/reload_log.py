"""The results of reading the files: the last one, and each in the log, the metrics and the events."""

from __future__ import annotations

import time

from lbctl.base.diagnostics import Diagnostic
from lbctl.runtime import log
from lbctl.serve.fleet import key_files
from lbctl.serve.fleet.history import SHORT
from lbctl.serve.fleet.publication_log import stays
from lbctl.serve.fleet.publisher import Publisher
from lbctl.serve.fleet.reload_result import ChangeObserver, ReloadOutcome
from lbctl.serve.metrics.instruments import Metrics, ReloadStatus
from lbctl.store.history import ActiveRollback


class ReloadLog:
    """Keeps the last result, and logs a diagnostic once as long as it stays."""

    def __init__(self, publisher: Publisher, metrics: Metrics, observer: ChangeObserver) -> None:
        self.last: ReloadOutcome | None = None
        """The last result; None before the files were read."""
        self._publisher = publisher
        self._metrics = metrics
        self._observer = observer
        self._logged: frozenset[Diagnostic] = frozenset()

    def served(self, diagnostics: tuple[Diagnostic, ...], rollback: ActiveRollback | None, *, new: bool) -> None:
        """Log that a fleet is served. `rollback`: the one that it is served for; `new`: it differs from the last."""
        log.findings(item for item in diagnostics if item not in self._logged)
        self._logged = frozenset(diagnostics)
        if rollback is not None:
            log.warn("the files are ignored until they change", because_of="a rollback", actor=rollback.actor)
            self.note("rolled_back", diagnostics, _ignored(rollback))
            return
        if self.last is not None and not self.last.valid:
            log.event("the files are served again")
        self.note("published" if new else "unchanged", diagnostics)

    def refused(
        self, result: ReloadStatus, diagnostics: tuple[Diagnostic, ...], cause: str, shrink: tuple[Diagnostic, ...] = ()
    ) -> None:
        """Log why the files are not served: errors each time, other diagnostics once."""
        log.findings(item for item in diagnostics if item.severity == "error" or item not in self._logged)
        self._logged |= frozenset(diagnostics)
        log.error(f"the files are not served{stays(self._publisher)}", reason=cause)
        self.note(result, diagnostics, cause, shrink)

    def failed(self, error: Exception) -> None:
        """Log an exception of our own that the files have led to. The caller handles the exception."""
        log.failure(f"lbctl itself failed on these files{stays(self._publisher)}")
        message = f"lbctl itself failed on these files ({type(error).__name__}: {error}); the log has more"
        self.note("unsound", (Diagnostic("LB999", message),), "lbctl itself failed on them")

    def note(
        self, result: ReloadStatus, diagnostics: tuple[Diagnostic, ...], refused: str | None = None,
        shrink: tuple[Diagnostic, ...] = (),
    ) -> None:  # fmt: skip
        """Keep the result as the last one, and count it. `refused`: why these files are not served."""
        unusable_key_files = sum(item.code in (key_files.UNUSABLE, key_files.SHRUNK) for item in diagnostics)
        warnings = sum(item.severity == "warning" for item in diagnostics)
        self._metrics.reloaded(result, warnings, unusable_key_files)
        self.last = ReloadOutcome(result, diagnostics, time.time(), refused, shrink)
        self._observer.reloaded(self.last)


def _ignored(rollback: ActiveRollback) -> str:
    """Return why the files are not served while a rollback is in force."""
    reason = f": {rollback.reason}" if rollback.reason else ""
    return f"ignored until they change, since {rollback.actor} has rolled back to {rollback.digest[:SHORT]}{reason}"

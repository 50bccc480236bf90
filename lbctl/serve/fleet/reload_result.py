"""What came of one reading of the files, and who is notified of every change of the published fleet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lbctl.base.diagnostics import Diagnostic
from lbctl.serve.fleet.publisher import PublishedFleet, PublishResult
from lbctl.serve.metrics.instruments import ReloadStatus
from lbctl.store.history import ActiveRollback


@dataclass(frozen=True, slots=True)
class ReloadOutcome:
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

    def reloaded(self, result: ReloadOutcome) -> None:
        """Handle the end of a reading of the files."""

    def rolled_back(self, rollback: ActiveRollback) -> None:
        """Handle a rollback, after an earlier fleet is served in place of the files."""

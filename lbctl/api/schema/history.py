"""`GET /api/v1/history` and `POST /api/v1/rollback`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lbctl.api.schema.status import Diagnostic, Snapshot
from lbctl.api.schema.values import ReloadOutcome, Timestamp


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A fleet that was served."""

    digest: str
    """The digest of its YAML files: SHA-256 of their names and contents, in hexadecimal."""
    at: Timestamp
    """Since when it was served."""
    current: bool
    """Whether it is the fleet that is served now."""
    commit: str | None
    """The git commit that its files were read from; None where they were in no git checkout."""
    dirty: bool
    """Whether the files differed from the commit."""
    action: Literal["files", "reload", "rollback"]
    """What led to it: a change of the files, `lbctl reload`, or `lbctl rollback`."""
    actor: str
    """The name of the token that was used; `lbctl` for a change of the files."""
    reason: str | None
    """Why, in the operator's words; None where none was given."""
    version: str
    """The version of the first snapshot that was built from it."""
    pools: int
    """The number of its pools."""
    replicas: int
    """The number of its replicas, with those that were discovered at that time."""


@dataclass(frozen=True, slots=True)
class History:
    """The answer of `GET /api/v1/history`."""

    entries: tuple[HistoryEntry, ...]
    """The newest 20 at most, the oldest first; fewer where their files are large."""


@dataclass(frozen=True, slots=True)
class RollbackRequest:
    """The body of `POST /api/v1/rollback`."""

    digest: str | None = None
    """The digest of an entry of the history, or its first characters (4 or more); None: the newest fleet before the
    current one."""
    allow_shrink: bool = False
    """Whether to serve it even where it loses more replicas or keys than `control.max_shrink` allows."""
    reason: str | None = None
    """Why; at most 200 characters are kept."""


@dataclass(frozen=True, slots=True)
class RollbackResult:
    """The answer of `POST /api/v1/rollback`."""

    result: ReloadOutcome
    """`rolled_back`; `published` or `unchanged` where that fleet is the one of the files; or why nothing has changed:
    `invalid`, `refused`, `unsound`."""
    refused: str | None
    """Why the files, or the earlier fleet, are not served; None where they are."""
    digest: str
    """The digest of the earlier fleet."""
    snapshot: Snapshot | None
    """What is published now."""
    diagnostics: tuple[Diagnostic, ...]
    """Everything that reading the earlier fleet reported."""

"""The audit log: the actor, action, time and reason of each operation, saved in the state as a hash chain."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from lbctl.runtime import log
from lbctl.runtime.errors import NotSavedError
from lbctl.store.interface import StoreError
from lbctl.store.records import ChainedAuditRecord
from lbctl.store.saved import SavedState

CONTROL_PLANE = "lbctl"
"""Actor of the control plane's own actions."""


class AuditLog:
    """Appends records to the audit log. `now` returns seconds since the epoch."""

    def __init__(self, state: SavedState, now: Callable[[], float] = time.time) -> None:
        self._state = state
        self._now = now
        self._failure = log.LastingFailure("the audit log can be written again")

    @property
    def problem(self) -> str:
        """Reason why the state cannot be written; empty after a successful write."""
        return self._state.problem

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the repairs, losses and security problems since the state was opened."""
        return self._state.notes

    async def record(self, actor: str, action: str, subject: str, reason: str = "") -> None:
        """Append a record. Raises NotSavedError, because an action that cannot be recorded must not be performed."""
        at = datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        try:
            await self._state.append_audit(at, actor, action, subject, reason)
        except StoreError as error:
            self._failure.failed(f"the audit log cannot be written: {error}")
            raise NotSavedError(f"the audit log cannot be written, and nothing was changed: {error}") from error
        self._failure.succeeded()

    async def last(self, subject: str) -> ChainedAuditRecord | None:
        """Return the newest record about the subject; None if there is none. Raises NotSavedError."""
        try:
            records = await self.records()
        except StoreError as error:
            raise NotSavedError(f"the audit log cannot be read, and nothing was changed: {error}") from error
        return next((item for item in reversed(records) if item.subject == subject), None)

    async def records(self) -> tuple[ChainedAuditRecord, ...]:
        """Return the retained records, oldest first. Raises StoreError."""
        return await self._state.audit()

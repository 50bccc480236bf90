"""Rollbacks by an operator: validates the request, and publishes an earlier fleet from the history."""

from __future__ import annotations

from lbctl.runtime import log
from lbctl.serve.fleet.history import SHORT, FleetHistory
from lbctl.serve.fleet.log import ReloadOutcome
from lbctl.serve.fleet.reconciler import Reconciler
from lbctl.store.history import Cause, ServedFleet

_MAX_REASON = 200
"""Maximum length of a saved reason in characters."""


class RollbackService:
    """Republishes earlier fleets."""

    def __init__(self, reconciler: Reconciler, history: FleetHistory) -> None:
        self.history = history
        self._reconciler = reconciler

    async def act(
        self, digest: str | None, actor: str, *, reason: str = "", allow_shrink: bool = False
    ) -> tuple[ServedFleet, ReloadOutcome]:
        """Publish the fleet with this digest or digest prefix until the files change; None selects the previous fleet.

        `actor` is the operator's name. `allow_shrink`: accept any loss of replicas and keys. Raises BadRequestError,
        and NotSavedError if a restart would lose the rollback.
        """
        reason = reason[:_MAX_REASON]
        entry = self.history.find(digest)
        log.event("rollback", digest=entry.digest[:SHORT], actor=actor, reason=reason or None)
        cause = Cause(actor, "rollback", reason)
        return entry, await self._reconciler.rollback(entry, cause, allow_shrink=allow_shrink)

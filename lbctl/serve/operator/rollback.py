"""Rollbacks by an operator: checks the request, and serves an earlier fleet of the history."""

from __future__ import annotations

from typing import Any

from lbctl.base.diagnostics import show
from lbctl.serve import log
from lbctl.serve.errors import BadRequestError
from lbctl.serve.fleet.history import SHORT, FleetHistory
from lbctl.serve.fleet.reconciler import Reconciler
from lbctl.serve.fleet.reload_result import ReloadResult
from lbctl.serve.state.history import Cause, HistoryEntry

_FIELDS = frozenset({"digest", "allow_shrink", "reason"})
_MAX_REASON = 200
"""The longest reason that is saved, in characters."""


class RollbackService:
    """Serves earlier fleets again."""

    def __init__(self, reconciler: Reconciler, history: FleetHistory) -> None:
        self.history = history
        self._reconciler = reconciler

    async def act(self, body: dict[str, Any], actor: str) -> tuple[HistoryEntry, ReloadResult]:
        """Serve the fleet that the body names (`digest`, or the one before the current) until the files change.

        `allow_shrink` accepts any loss of replicas and keys. Raises BadRequestError, and NotSavedError where a restart
        would forget it.
        """
        digest, allow_shrink, reason = _checked(body)
        entry = self.history.find(digest)
        log.event("rollback", digest=entry.digest[:SHORT], actor=actor, reason=reason or None)
        cause = Cause(actor, "rollback", reason)
        return entry, await self._reconciler.rollback(entry, cause, allow_shrink=allow_shrink)


def _checked(body: dict[str, Any]) -> tuple[str | None, bool, str]:
    """Return the digest, whether any loss is accepted, and the reason. Raises BadRequestError."""
    if unknown := body.keys() - _FIELDS:
        raise BadRequestError(f"there is no field {show(min(unknown))}; there are {', '.join(sorted(_FIELDS))}")
    digest, reason, allow_shrink = body.get("digest"), body.get("reason"), body.get("allow_shrink", False)
    if not isinstance(digest, str | None) or not isinstance(reason, str | None):
        raise BadRequestError("`digest` and `reason` are texts, or null")
    if not isinstance(allow_shrink, bool):
        raise BadRequestError("`allow_shrink` is true or false")
    return digest, allow_shrink, (reason or "")[:_MAX_REASON]

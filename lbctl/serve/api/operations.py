"""What operators do by the API, and the documents that show what is in force and what was done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, replace

from lbctl.api import schema
from lbctl.control.overrides import Override
from lbctl.control.rollouts import reconcile
from lbctl.control.splits import shares_of, with_sum_of
from lbctl.runtime import log
from lbctl.runtime.errors import NotSavedError
from lbctl.serve.api import consequences, decision_rows, history_rows, pick_rows, rollout_rows, status_rows
from lbctl.serve.api.pool_views import PoolViews
from lbctl.store.history import Cause


class Operations(PoolViews):
    """Executes the operations of the API, and shows their results."""

    def overrides(self) -> schema.Overrides:
        """Return `GET /api/v1/overrides`."""
        return schema.Overrides(tuple(decision_rows.override(item) for item in self._parts.live.inputs.overrides))

    async def put_override(self, request: schema.OverrideRequest, actor: str) -> schema.OverrideResult:
        """Hold an override from now on. Raises BadRequestError and NotSavedError."""
        wanted = replace(_held(request), value=request.value, reason=request.reason or "")
        override = await self._parts.overrides.put(wanted, request.shares, request.ttl, actor)
        about = (override.pool, *dict(override.shares))
        return schema.OverrideResult(decision_rows.override(override), self._snapshot(), self._warnings(about))

    async def remove_override(self, request: schema.OverrideRemoval, actor: str) -> schema.RemovalResult:
        """End an override. Raises BadRequestError and NotSavedError."""
        removed = await self._parts.overrides.remove(_held(request), actor)
        shares = next((item.shares for item in self.splits() if item.route == request.route), {})
        return schema.RemovalResult(removed, self._snapshot(), self._warnings((request.pool, *shares)))

    def rollouts(self) -> schema.Rollouts:
        """Return `GET /api/v1/rollouts`."""
        served = self._parts.live.served
        if served is None:
            return schema.Rollouts(())
        files, composed = served.loaded.compiled.topology, served.composed.whole.topology
        now = self._parts.rollouts.now()
        outages, unchecked = self._parts.rollouts.outages, self._parts.rollouts.unchecked
        # a step is shown once it is published, so that a client that waits for it, and then for the proxies, does not
        # see what these had before; the states may be of older files
        states = reconcile(served.inputs.rollouts, files, now, outages, unchecked)
        requests: Counter[str] = Counter()
        for key, count in self._parts.traffic.ledger.recent(self._parts.traffic.clock()).items():
            requests[key.pool] += count
        rows = rollout_rows.rows(states, files, composed, served.composed.overrides, requests, outages, now)
        return schema.Rollouts(tuple(rows))

    def splits(self) -> tuple[schema.LiveSplit, ...]:
        """Return the splits that are published, of routes that forward to several pools, on the scale of the files."""
        files = self._parts.live.topology
        in_files = {route.name: shares_of(route) for route in files.routes} if files else {}
        shares = (
            (route.name, dict(with_sum_of(in_files.get(route.name, ()), shares_of(route))))
            for route in self._topology().routes
        )
        return tuple(schema.LiveSplit(name, pools) for name, pools in shares if len(pools) > 1)

    async def act_on_rollout(self, request: schema.RolloutRequest, actor: str) -> schema.RolloutResult:
        """Start, move or end a rollout. Raises BadRequestError and NotSavedError."""
        state = await self._parts.rollouts.act(
            request.route, request.action, actor, percent=request.percent, reason=request.reason or "",
            allow_unavailable=bool(request.allow_unavailable),
        )  # fmt: skip
        row = next(item for item in self.rollouts().rollouts if item.route == state.route)
        return schema.RolloutResult(row, self._warnings(row.split))

    def _warnings(self, about: Iterable[str]) -> tuple[str, ...]:
        """Return what an operator has to know after a change that is about these pools."""
        files = consequences.not_served(self._parts.reconciler.last_reload)
        return (*consequences.unserved(self.pools().pools, self._topology().routes, set(about)), *files)

    def history(self) -> schema.History:
        """Return `GET /api/v1/history`."""
        return schema.History(history_rows.entries(self._parts.rollbacks.history))

    async def rollback(self, request: schema.RollbackRequest, actor: str) -> schema.RollbackResult:
        """Serve an earlier fleet until the files change. Raises BadRequestError and NotSavedError."""
        entry, result = await self._parts.rollbacks.act(
            request.digest, actor, reason=request.reason or "", allow_shrink=request.allow_shrink
        )
        return schema.RollbackResult(
            result=result.result,
            refused=result.refused,
            digest=entry.digest,
            snapshot=self._snapshot(),
            diagnostics=status_rows.diagnostics(result.diagnostics),
        )

    async def reload(self, request: schema.ReloadRequest, actor: str) -> schema.ReloadResult:
        """Read the files now, and return what came of it."""
        allow_shrink = request.allow_shrink
        log.event("asked by the API to read the files again", allow_shrink=allow_shrink, actor=actor)
        with suppress(NotSavedError):  # a reload is as safe as a change of the files
            await self._parts.audit.record(actor, "reload", "allow_shrink" if allow_shrink else "files")
        await self._parts.reconciler.reload(allow_shrink=allow_shrink, cause=Cause(actor, "reload"))
        offered_again = self._parts.endpoints.retry_rejected()
        last_reload = self._parts.reconciler.last_reload
        return schema.ReloadResult(
            result=last_reload.result if last_reload else "invalid",
            refused=last_reload.refused if last_reload else None,
            offered_again=offered_again,
            snapshot=self._snapshot(),
            diagnostics=status_rows.diagnostics(last_reload.diagnostics if last_reload else ()),
        )

    async def audit(self) -> schema.Audit:
        """Return `GET /api/v1/audit`. Raises StoreError."""
        records = await self._parts.audit.records()
        return schema.Audit(tuple(schema.AuditRecord(**asdict(item), hash=item.hash) for item in records))

    async def explain_pick(self, request: schema.PickQuestion, actor: str) -> schema.PickExplanation:
        """Return which replica a request would be given. Raises BadRequestError and NotSavedError."""
        del actor
        return await pick_rows.explain(self._parts.picker, request)


def _held(request: schema.OverrideRequest | schema.OverrideRemoval) -> Override:
    """Return an override with its kind and its subject alone."""
    if request.kind == "split":
        return Override(request.kind, route=request.route or "")
    return Override(request.kind, request.pool, request.replica or "")

"""Operators' actions performed through the API, and the documents that list overrides, rollouts and past actions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace

from lbctl.api import schema
from lbctl.control.overrides import Override
from lbctl.control.rollouts import reconcile
from lbctl.control.splits import shares_of, with_sum_of
from lbctl.runtime import log
from lbctl.runtime.errors import BadRequestError, NotSavedError
from lbctl.serve.api import decision_rows, history_rows, operation_warnings, pick_rows, rollout_rows, status_rows
from lbctl.serve.api.handlers import operation
from lbctl.serve.api.served_state import ServedState
from lbctl.serve.api.status_rows import snapshot, topology
from lbctl.store.history import Cause
from lbctl.store.interface import StoreError

_MAX_RECORDS = 5_000
"""Maximum number of audit records read from the log and returned in a response."""


@operation
def overrides(state: ServedState) -> schema.Overrides:
    """Return `GET /api/v1/overrides`."""
    return schema.Overrides(tuple(decision_rows.override(item) for item in state.live.inputs.overrides))


@operation
async def put_override(state: ServedState, request: schema.OverrideRequest, actor: str) -> schema.OverrideResult:
    """Set an override. Raises BadRequestError and NotSavedError."""
    wanted = replace(_held(request), value=request.value, reason=request.reason or "")
    override = await state.overrides.put(wanted, request.shares, request.ttl, actor)
    about = (override.pool, *dict(override.shares))
    return schema.OverrideResult(decision_rows.override(override), snapshot(state.live), _warnings(state, about))


@operation
async def remove_override(state: ServedState, request: schema.OverrideRemoval, actor: str) -> schema.RemovalResult:
    """End an override. Raises BadRequestError and NotSavedError."""
    removed = await state.overrides.remove(_held(request), actor)
    shares = next((item.shares for item in splits(state) if item.route == request.route), {})
    return schema.RemovalResult(removed, snapshot(state.live), _warnings(state, (request.pool, *shares)))


@operation
def rollouts(state: ServedState) -> schema.Rollouts:
    """Return `GET /api/v1/rollouts`."""
    served = state.live.served
    if served is None:
        return schema.Rollouts(())
    files, composed = served.loaded.compiled.topology, served.composed.whole.topology
    now = state.rollouts.now()
    outages, unchecked = state.rollouts.outages, state.rollouts.unchecked
    # A step is shown only once it has been published, so that a client that waits for the step and then for the proxies
    # does not see their previous state. The states may belong to older files.
    states = reconcile(served.inputs.rollouts, files, now, outages, unchecked)
    requests: Counter[str] = Counter()
    for key, count in state.traffic.ledger.recent(state.traffic.clock()).items():
        requests[key.pool] += count
    rows = rollout_rows.rows(states, files, composed, served.composed.overrides, requests, outages, now)
    return schema.Rollouts(tuple(rows))


def splits(state: ServedState) -> tuple[schema.LiveSplit, ...]:
    """Return the published splits of routes that forward to several pools, scaled to the same total as in the files."""
    files = state.live.topology
    in_files = {route.name: shares_of(route) for route in files.routes} if files else {}
    shares = (
        (route.name, dict(with_sum_of(in_files.get(route.name, ()), shares_of(route))))
        for route in topology(state.live).routes
    )
    return tuple(schema.LiveSplit(name, pools) for name, pools in shares if len(pools) > 1)


@operation
async def act_on_rollout(state: ServedState, request: schema.RolloutRequest, actor: str) -> schema.RolloutResult:
    """Start, change or end a rollout. Raises BadRequestError and NotSavedError."""
    acted = await state.rollouts.act(
        request.route, request.action, actor, percent=request.percent, reason=request.reason or "",
        allow_unavailable=bool(request.allow_unavailable),
    )  # fmt: skip
    row = next(item for item in rollouts(state).rollouts if item.route == acted.route)
    return schema.RolloutResult(row, _warnings(state, row.split))


def _warnings(state: ServedState, about: Iterable[str]) -> tuple[str, ...]:
    """Return warnings for the operator after a change to these pools."""
    files = operation_warnings.not_served(state.reconciler.last_reload)
    routes = topology(state.live).routes
    return (*operation_warnings.unserved(state.replicas.pools().pools, routes, set(about)), *files)


@operation
def history(state: ServedState) -> schema.History:
    """Return `GET /api/v1/history`."""
    return schema.History(history_rows.entries(state.rollbacks.history))


@operation
async def rollback(state: ServedState, request: schema.RollbackRequest, actor: str) -> schema.RollbackResult:
    """Publish an earlier fleet, which stays in use until the files change. Raises BadRequestError and NotSavedError."""
    entry, result = await state.rollbacks.act(
        request.digest, actor, reason=request.reason or "", allow_shrink=request.allow_shrink
    )
    return schema.RollbackResult(
        result=result.result,
        refused=result.refused,
        digest=entry.digest,
        snapshot=snapshot(state.live),
        diagnostics=status_rows.diagnostics(result.diagnostics),
    )


@operation
async def reload(state: ServedState, request: schema.ReloadRequest, actor: str) -> schema.ReloadResult:
    """Reload the files now and return the result."""
    allow_shrink = request.allow_shrink
    log.event("reload requested by the API", allow_shrink=allow_shrink, actor=actor)
    with suppress(NotSavedError):  # reloading is as safe as changing the files
        await state.audit.record(actor, "reload", "allow_shrink" if allow_shrink else "files")
    await state.reconciler.reload(allow_shrink=allow_shrink, cause=Cause(actor, "reload"))
    offered_again = state.endpoints.retry_rejected()
    last_reload = state.reconciler.last_reload
    return schema.ReloadResult(
        result=last_reload.result if last_reload else "invalid",
        refused=last_reload.refused if last_reload else None,
        offered_again=offered_again,
        snapshot=snapshot(state.live),
        diagnostics=status_rows.diagnostics(last_reload.diagnostics if last_reload else ()),
    )


@operation
async def audit(state: ServedState, query: Mapping[str, str]) -> schema.Audit:
    """Return `GET /api/v1/audit`. Raises BadRequestError, and NotSavedError if the log cannot be read."""
    last = query.get("last", str(_MAX_RECORDS))
    if not last.isascii() or not last.isdecimal() or not 1 <= int(last[:9]) <= _MAX_RECORDS:
        raise BadRequestError(f"last must be a whole number from 1 to {_MAX_RECORDS}")
    try:
        records = await state.audit.records()
    except StoreError as error:
        raise NotSavedError(f"the audit log cannot be read: {error}") from None
    rows = [schema.AuditRecord(**asdict(item), hash=item.hash) for item in records]
    return schema.Audit(tuple(rows[-int(last) :]))


@operation
async def explain_pick(state: ServedState, request: schema.PickQuestion, actor: str) -> schema.PickExplanation:
    """Return the replica to which a request would be sent. Raises BadRequestError and NotSavedError."""
    del actor
    return await pick_rows.explain(state.picker, request, topology(state.live).routes)


def _held(request: schema.OverrideRequest | schema.OverrideRemoval) -> Override:
    """Return an override reduced to its kind and subject."""
    if request.kind == "split":
        return Override(request.kind, route=request.route or "")
    return Override(request.kind, request.pool, request.replica or "")

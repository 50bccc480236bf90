"""The published fleet's rollouts. They are advanced by time, by analysis and by operators.

A step is saved before it is sent to proxies.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

import aiohttp

from lbctl.base.diagnostics import show
from lbctl.control import outages, rollouts
from lbctl.control.analysis.judge import describe
from lbctl.control.outages import NO_OUTAGES, Outages
from lbctl.control.rollouts import Action, Rollouts, RolloutState
from lbctl.ir.routes import Rollout
from lbctl.ir.topology import Topology
from lbctl.runtime import log
from lbctl.runtime.errors import BadRequestError, NotSavedError
from lbctl.runtime.net import http_client
from lbctl.serve.fleet.live import LiveFleet
from lbctl.serve.operator.evidence import RolloutEvidence
from lbctl.store.audit import CONTROL_PLANE, AuditLog
from lbctl.store.interface import StoreError
from lbctl.store.saved import SavedState

_INTERVAL = 1.0
"""Seconds between checks of the clock and the files."""
_MAX_REASON = 200
"""Maximum length of a saved reason in characters."""
_Record = tuple[str, str, str, str]
"""An audit record's actor, action, subject and reason."""
OnChange = Callable[[Rollouts, Rollouts], None]
"""Called with the states before and after a change."""
InForce = Callable[[Rollouts, Topology], Collection[str]]
"""Returns the routes with a rollout in the files whose current step has reached a proxy."""
Unavailable = Callable[[Collection[str]], Mapping[str, str]]
"""Returns the reason why each of these pools has no available replica; if a pool has one, it is absent or its reason is
empty."""
Unchecked = Callable[[Collection[str]], frozenset[str]]
"""Returns the pools whose replicas have not been checked yet."""


class RolloutService:
    """Advances rollouts and performs operators' actions. `now` returns the time in seconds since the epoch."""

    def __init__(
        self,
        live: LiveFleet,
        state: SavedState,
        audit: AuditLog,
        evidence: RolloutEvidence,
        on_change: OnChange,
        in_force: InForce,
        unavailable: Unavailable,
        unchecked: Unchecked,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._evidence = evidence
        self._on_change = on_change
        self._in_force = in_force
        self._unavailable = unavailable
        self._unchecked = unchecked
        self.unchecked: frozenset[str] = frozenset()
        """The rollouts' pools whose replicas had not been checked at the last examination."""
        self.outages: Outages = NO_OUTAGES
        """The rollouts' pools that had no available replica at the last examination."""
        self._live = live
        self._state = state
        self._audit = audit
        self.now = now
        """The clock used for all rollout decisions, in seconds since the epoch."""
        self._lock = asyncio.Lock()
        self._failure = log.LastingFailure("rollouts are saved again")
        self._unsaved = False
        """Whether an abort or rollback has been applied but could not be saved yet."""
        self._owed: tuple[_Record, ...] = ()
        """Records of aborts and rollbacks that could not be saved yet."""
        self._recorded: set[_Record] = set()
        """Records of actions that are retried until they have been saved. Each is appended only once."""
        self._own: set[str] = set()
        """Routes for which this process has recorded something since it started making decisions."""

    def adopt(self, before: Rollouts) -> None:
        """Record that another process has saved the active states, which replace those in `before`."""
        self._unsaved, self._owed = False, ()
        self._recorded.clear()
        self._on_change(before, self._live.inputs.rollouts)

    async def save(self) -> None:
        """Save the active states, and make decisions from now on. Raises NotSavedError."""
        self._own.clear()
        await self._save(self._live.inputs.rollouts)

    async def run(self) -> None:
        """Start new files' rollouts and advance all rollouts, until the task is cancelled."""
        while True:
            async with self._lock:
                await self._advance()
            await asyncio.sleep(_INTERVAL)

    async def run_analysis(self) -> None:
        """Evaluate the steps of rollouts in `analysis` mode at their intervals, until the task is cancelled."""
        async with http_client.session() as session:
            while True:
                topology = self._live.topology
                due = self._evidence.due(self._live.inputs.rollouts, topology) if topology else ()
                await asyncio.gather(*(self._evaluate(session, *each) for each in due))
                await asyncio.sleep(_INTERVAL)

    async def act(
        self, route: str, action: Action, author: str, *, percent: float | None = None, reason: str = "",
        allow_unavailable: bool = False,
    ) -> RolloutState:  # fmt: skip
        """Perform an action by the operator `author` on a route's rollout, and return the rollout's new state.

        `percent` is used by the action `set`. `allow_unavailable` allows the rollout to continue without an available
        replica in its target pool until it is started again. Raises BadRequestError, and NotSavedError if the state
        cannot be saved. In both cases, nothing changes, with one exception: an abort takes effect even if it cannot be
        saved, because the split in the files must be restored.
        """
        async with self._lock:
            topology = self._live.topology
            if topology is None:
                raise BadRequestError("no fleet is published yet")
            before = self._reconciled(topology, route)
            after = self._after(route, action, percent, allow_unavailable, before, topology)
            state = replace(after, reason=reason[:_MAX_REASON])
            updated = tuple(state if item.route == state.route else item for item in before)
            override = ", unavailable target allowed" if allow_unavailable else ""
            record = (author, f"rollout {_summary(state, action)}{override}", state.route, state.reason)
            self._recorded.discard(record)
            try:
                await self._record_once([record])
                await self._save(updated)
            except NotSavedError as error:
                if action != "abort":
                    raise
                self._unsaved, self._owed = True, (*self._owed, record)
                await self._apply(updated, "an aborted rollout")
                raise NotSavedError(
                    f"the rollout of {state.route} is aborted, but the state cannot be saved: until it is saved, a "
                    "restart would continue the rollout"
                ) from error
            self._recorded.discard(record)
            self._log(state, action, author)
            await self._apply(updated, "a rollout")
        return state

    def _after(
        self, route: str, action: Action, percent: float | None, allow: bool, states: Rollouts, topology: Topology
    ) -> RolloutState:
        """Return the state after an action. Raises BadRequestError."""
        state = next((item for item in states if item.route == route), None)
        rollout = rollouts.rollout_of(topology, route)
        if state is None or rollout is None:
            names = ", ".join(item.route for item in states) or "none"
            raise BadRequestError(f"route {show(route)} has no rollout; routes with a rollout: {names}")
        share = percent if action == "set" else 0
        if share is None or not 0 <= share <= 100:
            raise BadRequestError("percent must be a number from 0 to 100")
        try:
            outage = rollouts.outage_of(state.base, rollout, self.outages)
            return rollouts.act(state, rollout, action, self.now(), float(share), outage, allow)
        except ValueError as error:
            raise BadRequestError(f"the rollout of {route} cannot {action}: {error}") from None

    async def _advance(self) -> None:
        topology = self._live.topology
        if topology is None:
            return
        before, now = self._live.inputs.rollouts, self.now()
        reconciled = self._reconciled(topology)
        in_force = self._in_force(reconciled, topology)
        updated = rollouts.advance(reconciled, topology, now, in_force, self.outages, self.unchecked)
        if updated != before or self._unsaved:
            await self._change(updated)

    def _reconciled(self, topology: Topology, acted_on: str = "") -> Rollouts:
        """Return the states of the rollouts in the current files, after checking their pools.

        Pools of rollouts that have ended are not checked, except for the pools of the route `acted_on`.
        """
        states, now = self._live.inputs.rollouts, self.now()
        pools = rollouts.pools_concerned(rollouts.reconcile(states, topology, now), topology, acted_on)
        self.outages = outages.track(self.outages, self._unavailable(pools) if pools else {}, now)
        self.unchecked = self._unchecked(pools) if pools else frozenset()
        return rollouts.reconcile(states, topology, now, self.outages, self.unchecked)

    async def _evaluate(self, session: aiohttp.ClientSession, state: RolloutState, rollout: Rollout) -> None:
        """Evaluate the past interval, unless the rollout changed while the evidence was being collected."""
        observation, begin_next = await self._evidence.observe(session, state, rollout, self.now())
        async with self._lock:
            states = self._live.inputs.rollouts
            if state not in states:
                return
            after = rollouts.evaluate(state, rollout, observation, self.now())
            if await self._change(tuple(after if item == state else item for item in states)):
                begin_next()
                evaluation = describe(after.analysis.evaluations[-1])
                log.event("rollout evaluated", route=state.route, step=state.step + 1, evaluation=evaluation)

    async def _change(self, updated: Rollouts) -> bool:
        """Record, save and apply automatic decisions, and return whether they have been applied.

        A failed save is retried, and no step is sent to a proxy if it would be lost in a restart. Rollbacks are applied
        and evidence is counted even if they cannot be saved.
        """
        before = {state.route: state for state in self._live.inputs.rollouts}
        moved = [
            state
            for state in updated
            if (_moved(before[state.route], state) if state.route in before else not self._awaits_check(state))
        ]
        records = [(CONTROL_PLANE, f"rollout {_summary(state)}", state.route, _evidence(state)) for state in moved]
        owed = (*self._owed, *records)
        try:
            await self._record_once(owed)
            await self._save(updated)
        except NotSavedError:
            if any(state.phase != "rolled_back" for state in moved):
                return False
            self._unsaved, self._owed = self._unsaved or bool(moved), owed
        else:
            self._unsaved, self._owed = False, ()
            self._recorded.clear()
        for state in moved:
            self._log(state)
        await self._apply(updated, "a rollout")
        return True

    def _awaits_check(self, state: RolloutState) -> bool:
        """Return whether an automatic rollout is waiting for its target's first check before it starts."""
        topology = self._live.topology
        rollout = rollouts.rollout_of(topology, state.route) if topology is not None else None
        return state.phase == "waiting" and rollout is not None and rollout.mode != "manual" and not state.reason

    async def _record_once(self, records: Iterable[_Record]) -> None:
        """Append the records that an earlier attempt did not append. Raises NotSavedError."""
        for record in records:
            if record not in self._recorded:
                if not await self._was_recorded(record):
                    await self._audit.record(*record)
                self._recorded.add(record)
                self._own.add(record[2])

    async def _was_recorded(self, record: _Record) -> bool:
        """Return whether a process was killed after recording this change but before saving it."""
        actor, action, route, _ = record
        if actor != CONTROL_PLANE or route in self._own:
            return False
        last = await self._audit.last(route)
        return last is not None and (last.actor, last.action) == (actor, action)

    async def _save(self, updated: Rollouts) -> None:
        try:
            await self._state.save_rollouts(updated)
        except StoreError as error:
            self._failure.failed(f"rollouts cannot be saved: {error}")
            raise NotSavedError(f"the rollout cannot be saved, and would be lost on a restart: {error}") from error
        self._failure.succeeded()

    async def _apply(self, updated: Rollouts, cause: str) -> None:
        self._on_change(self._live.inputs.rollouts, updated)
        await self._live.apply(replace(self._live.inputs, rollouts=updated), cause)

    def _log(self, state: RolloutState, action: Action | None = None, author: str | None = None) -> None:
        step, percent = (state.step + 1, f"{state.percent:g} %") if state.moves else (None, None)
        log.event(
            "rollout", route=state.route, phase=state.phase, step=step, share=percent, action=action,
            author=author, reason=state.reason or None,
        )  # fmt: skip


def _summary(state: RolloutState, action: Action | None = None) -> str:
    """Describe the action and the rollout's resulting position for the audit log."""
    place = f"step {state.step + 1}, {state.percent:g} %" if state.moves else "the split in the files"
    return ", ".join(filter(None, (action, f"{state.phase} ({place})")))


def _moved(before: RolloutState, after: RolloutState) -> bool:
    """Return whether anything has changed other than the evidence, the hold duration and the notes about the files."""
    unmoved = replace(
        after, analysis=before.analysis, models=before.models, elapsed=before.elapsed, held_since=before.held_since
    )
    return unmoved != before


def _evidence(state: RolloutState) -> str:
    """Return the reason for the rollout's current state: the stored reason, or the previous step's last evaluation."""
    evaluations = state.analysis.evaluations
    return state.reason or (describe(evaluations[-1]) if evaluations else "")

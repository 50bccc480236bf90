"""This process as a member of a control plane: it either leads or follows the leader.

The leader makes the decisions, drives nginx and HAProxy, and writes to the store. A follower reads the leader's records
and sends the same resources, with the same versions, to any Envoy. A member that becomes the leader continues from the
state that it was following: the weights change from their current values, at the normal rate limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from lbctl import __version__
from lbctl.runtime import log
from lbctl.runtime.errors import NotSavedError
from lbctl.runtime.guard import Guard, Work, end_tasks
from lbctl.serve.ha.clock import FleetClock
from lbctl.serve.ha.election import Election
from lbctl.serve.ha.following import Following
from lbctl.serve.ha.leading import Leading
from lbctl.serve.ha.presence import INTERVAL, TTL, KnownMembers, MemberInfo, read_infos, write_info
from lbctl.serve.ha.records import FOLLOWED, LEADER, LeaderStatus, SharedRecords, read_leader
from lbctl.serve.ha.requests import MemberRequests
from lbctl.serve.ha.roles import RoleTasks, SharedParts
from lbctl.serve.ha.sharing import PoolSharing
from lbctl.serve.operator.steps_in_force import StepsInForce
from lbctl.store.interface import StoreError
from lbctl.store.lease import Authority
from lbctl.store.records import UNREADABLE
from lbctl.store.saved import SavedState
from lbctl.store.signed_store import SignedStore, refusals

_RETRY = 0.5
"""Seconds before a failed takeover is retried."""


class MemberObserver(Protocol):
    """Is notified of changes among the members after they have happened."""

    def role_changed(self, member: str, role: str, epoch: int) -> None:
        """Called when this member gets a new role. `epoch`: the epoch in which it is leading or last led."""

    def store_changed(self, member: str, problem: str) -> None:
        """Called when a problem with the store occurs or ends.

        An empty reason means that the store is responding again.
        """

    def files_differ(self, members: tuple[str, ...]) -> None:
        """Called when the set of members whose files differ from the leader's changes."""

    def pools_shared(self, members: tuple[str, ...], pools: tuple[str, ...]) -> None:
        """Called when the set of members that share the pools changes, or when this member's pools change."""


class FleetMember:
    """One member."""

    def __init__(
        self,
        known: KnownMembers,
        store: SignedStore,
        state: SavedState,
        authority: Authority,
        election: Election,
        clock: FleetClock,
        parts: SharedParts,
        guard: Guard,
        role_tasks: RoleTasks,
        addresses: Callable[[], tuple[str, str]],
        observer: MemberObserver,
        steps: StepsInForce,
    ) -> None:
        """`addresses` returns the API's URL and the address for Envoys; each is empty while closed."""
        self.name = known.name
        self.election = election
        self.clock = clock
        self._known = known
        self.takeovers = 0
        """Number of times this member has become the leader."""
        self.store = store
        self.requests = MemberRequests(self.name, store.keys, clock.now)
        """Signs and verifies requests between members."""
        self.sharing = PoolSharing(
            self.name, parts.scraping, parts.loop, state, min(TTL, election.ttl), authority.clock, observer.pools_shared
        )
        self.records = SharedRecords(parts, self.sharing)
        self._state = state
        self._authority = authority
        self._parts = parts
        self._guard = guard
        self._role_tasks = role_tasks
        self._addresses = addresses
        self._observer = observer
        self._steps = steps
        self._following = Following(state, parts, self.records, self.sharing, clock, role_tasks, authority.clock)
        self._role: Leading | Following = self._following
        """The current role; `Leading` only after a completed takeover."""
        self._last_epoch = 0
        """The most recent epoch in which this member led; 0 if it has never led."""
        self._running: dict[str, asyncio.Task[None]] = {}
        self._differing: tuple[str, ...] = ()
        """Members whose files differed from the leader's in the last report."""

    @property
    def members(self) -> tuple[MemberInfo, ...]:
        """The members' most recent heartbeats."""
        return self._known.infos

    @property
    def leads(self) -> bool:
        """Whether this member makes decisions and accepts writes, which it does once its takeover is complete."""
        epoch = self._role.epoch if isinstance(self._role, Leading) else 0
        return self.election.role != "follower" and epoch == self.election.epoch

    @property
    def lag(self) -> float | None:
        """Seconds since the leader's last heartbeat was received; None for the leader, and before the first one."""
        return None if self.leads else self._following.lag

    @property
    def catching_up(self) -> bool:
        """Whether the leader has written changes that this member has not published yet."""
        return self._following.catching_up

    @property
    def epoch(self) -> int:
        """The epoch in which this member is leading, or whose decisions it is following; 0 before the first."""
        leader = self.records.leader
        return self.election.epoch if self.election.role != "follower" else leader.epoch if leader else 0

    @property
    def refused(self) -> str:
        """Reason why records in the store were rejected; empty if none were."""
        return refusals(self.store.refused)

    @property
    def leader(self) -> MemberInfo | None:
        """The leader's most recent heartbeat; None if there is no leader."""
        return next((item for item in self.members if item.role == "leader"), None)

    @property
    def differing(self) -> tuple[str, ...]:
        """Members whose files differ from the leader's; empty if there is no leader."""
        leader = self.leader
        return tuple(item.name for item in self.members if leader is not None and item.digest != leader.digest)

    @property
    def leader_api(self) -> str:
        """URL of the leader's API; empty if unknown, and for the leader itself."""
        leader = self.records.leader
        if self.election.role == "leader" or self.leads or leader is None or leader.member == self.name:
            return ""
        announced = any((item.name, item.api) == (leader.member, leader.api) for item in self.members)
        return leader.api if announced else ""

    # ── The start ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def prepare(self) -> None:
        """Read the leader's published fleet, so that this process starts with the same fleet. Raises StoreError.

        The other members' pickers are read too, so that this process's picker can copy their memory.
        """
        for entry in await self._state.entries(FOLLOWED):
            self.records.take(entry.key, entry.value)
        self._parts.reconciler.serve_leader(self.records.fleet if await self.store.leader() else None)
        self._use_pickers(read_infos(await self.store.members()))

    # ── The tasks ────────────────────────────────────────────────────────────────────────────────────────────────────

    def tasks(self) -> Mapping[str, Work]:
        """Return a member's tasks by name; they run until the process exits."""
        return {"lease": self.election.run, "role of this member": self.run, "members": self._announce}

    async def run(self) -> None:
        """Lead or follow, depending on the election, until the task is cancelled."""
        self._role = self._following
        if self.election.role != "follower":
            self.election.changed.set()  # this task has failed before, and the lease is still held
        try:
            await self._switch(self._following.tasks())
            while True:
                await self.election.changed.wait()
                self.election.changed.clear()
                await self._take_role()
        finally:
            await self._switch({})

    async def _take_role(self) -> None:
        role = self.election.role
        self._observer.role_changed(self.name, role, self.election.epoch)
        if role == "leader":
            while not await self._lead():
                await asyncio.sleep(_RETRY)
                if self.election.role != "leader":
                    self.election.changed.set()
                    return
        elif role == "isolated" and isinstance(self._role, Leading):
            await self._switch(self._role.isolated())
        else:
            self._role = self._following
            self._following.begin()
            await self._switch(self._following.tasks())

    async def _lead(self) -> bool:
        """Take over, using the stored records and this member's state.

        Return False if the store fails in the meantime.
        """
        started = time.perf_counter()
        await self._switch({})
        leading = Leading(
            self.election.epoch, self.store, self._state, self._parts, self.records, self.sharing, self._role_tasks,
            self._status,
        )  # fmt: skip
        try:
            await leading.take_records(knows_all=await self._led_last())
            self._last_epoch = leading.epoch
            await leading.decide(self.members)
        except (StoreError, NotSavedError) as error:
            log.error("this member cannot take over yet", reason=error)
            return False
        self._role = leading
        self.takeovers += 1
        log.event("took over as the leader", epoch=leading.epoch, seconds=time.perf_counter() - started)
        await self._switch(leading.tasks())
        return True

    async def _led_last(self) -> bool:
        """Return whether this member was the last leader, so that its state is newer than the stored state."""
        for entry in await self._state.entries([LEADER]):
            with suppress(*UNREADABLE):
                status = read_leader(entry.value)
                return self._last_epoch > 0 and (status.member, status.epoch) == (self.name, self._last_epoch)
        return self._last_epoch > 0

    def _status(self) -> LeaderStatus:
        api, _ = self._addresses()
        return LeaderStatus(self.name, self.election.epoch, api, self.clock.now(), self._version())

    def _version(self) -> str:
        served = self._parts.live.served
        return served.cached_snapshot.version if served else ""

    async def _switch(self, tasks: Mapping[str, Work]) -> None:
        """Run exactly these tasks; those that are already running continue."""
        await end_tasks([self._running.pop(name) for name in list(self._running) if name not in tasks])
        for name, work in tasks.items():
            if name not in self._running:
                self._running[name] = self._guard.start(name, work)

    # ── What members say about themselves ────────────────────────────────────────────────────────────────────────────

    async def _announce(self) -> None:
        while True:
            own = await self.info()
            self._known.replace(tuple(own if item.name == self.name else item for item in self.members))
            announced = await self._exchange(own)
            self.sharing.check()
            if announced is not None:
                self._known.replace(tuple(replace(item, samples="") for item in announced))
                self._use_pickers(announced)
                self._tell_differing()
            if self.leads:
                await self.sharing.lead(announced)
            await asyncio.sleep(INTERVAL)

    def _use_pickers(self, infos: Iterable[MemberInfo]) -> None:
        self._parts.pickers.use_announcements(
            picker for item in infos if item.name != self.name for picker in item.pickers
        )

    def _tell_differing(self) -> None:
        before, self._differing = self._differing, self.differing
        if self._differing != before:
            self._observer.files_differ(self._differing)

    async def _exchange(self, own: MemberInfo) -> tuple[MemberInfo, ...] | None:
        """Announce this member, and return all members' announcements; None if the store does not respond."""
        asked_at = self._authority.clock()
        try:
            info = write_info(replace(own, samples=await self.sharing.samples()))
            await self.store.announce(self.name, info, TTL)
            self.sharing.renewed(asked_at)
            return read_infos(await self.store.members())
        except StoreError:
            return None

    async def info(self) -> MemberInfo:
        """Return this member's current heartbeat."""
        api, xds = self._addresses()
        return MemberInfo(
            name=self.name,
            role=self.election.role,
            epoch=self.epoch,
            api=api,
            xds=xds,
            version=__version__,
            snapshot=self._version(),
            digest=await self._parts.history.shared_on_disk(),
            lag=self.lag,
            clock=self.clock.offset,
            latency=self.election.latency,
            problem=self.election.problem or self.refused,
            shares=True,
            steps=self._steps.own(self._parts.live.inputs.rollouts, self._parts.live.topology),
            pickers=self._parts.pickers.announcement(),
        )

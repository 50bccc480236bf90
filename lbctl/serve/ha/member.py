"""This process as one of the members of a control plane: it leads, or it follows the one that does.

The leader decides, drives nginx and HAProxy, and writes. A follower reads what the leader writes, and serves the same
resources with the same versions to any Envoy. A member that becomes the leader continues from what it follows: the
weights move on from where they are, by their normal rate limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from lbctl import __version__
from lbctl.runtime import log
from lbctl.runtime.errors import NotSavedError
from lbctl.runtime.guard import Guard, Work, end_tasks
from lbctl.serve.ha.clock import FleetClock
from lbctl.serve.ha.election import Election
from lbctl.serve.ha.format import write_format
from lbctl.serve.ha.news import MemberNews
from lbctl.serve.ha.parts import RoleTasks, SharedParts
from lbctl.serve.ha.presence import INTERVAL, TTL, KnownMembers, MemberInfo, read_infos, write_info
from lbctl.serve.ha.records import FOLLOWED, LEADER, LeaderStatus, SharedRecords, read_leader, write_leader
from lbctl.serve.ha.requests import MemberRequests
from lbctl.serve.ha.sharing import SHARING, PoolSharing
from lbctl.serve.operator.steps_in_force import StepsInForce
from lbctl.store.interface import KeyChange, StoreError
from lbctl.store.lease import Authority
from lbctl.store.records import UNREADABLE
from lbctl.store.saved import SavedState
from lbctl.store.signed_store import SignedStore, refusals

_SETTLE = 0.01
"""Seconds for which changes are gathered before they are published together."""
_RETRY = 0.5
"""Seconds until a takeover, or a watch of the store, that has failed is tried again."""
_LOOK = 10.0
"""Seconds between two looks of the leader at what others have changed in the store."""
_READER_ENDS = 0.05
"""Seconds until a reader of the store that goes on is cancelled again: a takeover waits for its end."""
_PUBLISHES_NOTHING = (LEADER, SHARING, "fleet/served", "history/entries", "rollback")
"""Keys whose change changes nothing that proxies have."""
_SKEW = 5.0
"""Seconds by which the clocks of two members may differ without a warning."""


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
        news: MemberNews,
        steps: StepsInForce,
    ) -> None:
        """`addresses` returns the URL of the API and the address for Envoys, each empty while it is closed."""
        self.name = known.name
        self.election = election
        self.clock = clock
        self._known = known
        self.takeovers = 0
        """How often this member has become the leader."""
        self.store = store
        self.requests = MemberRequests(self.name, store.keys, clock.now)
        """Signs and verifies the requests between members."""
        self.sharing = PoolSharing(
            self.name, parts.telemetry, state, min(TTL, election.ttl), authority.clock, news.pools_shared
        )
        self.records = SharedRecords(parts.history, self.sharing)
        self._state = state
        self._authority = authority
        self._parts = parts
        self._guard = guard
        self._role_tasks = role_tasks
        self._addresses = addresses
        self._news = news
        self._steps = steps
        self._leads = False
        self._taken_over = 0
        """The epoch in which this member has taken over all records; 0 before the first."""
        self._last_epoch = 0
        """The last epoch in which this member has led; 0 before the first."""
        self._leader_seen_at: float | None = None
        """When the leader's last sign of life was seen, by the clock of `authority`."""
        self._running: dict[str, asyncio.Task[None]] = {}
        self._skewed = False
        self._differing: tuple[str, ...] = ()
        """The members whose files were not the leader's when that was told last."""
        self.catching_up = False
        """Whether the leader has written what this member does not serve yet."""

    @property
    def members(self) -> tuple[MemberInfo, ...]:
        """What the members have announced last."""
        return self._known.infos

    @property
    def leads(self) -> bool:
        """Whether this member decides and takes writes: from the end of its takeover on."""
        return self.election.role != "follower" and self._taken_over == self.election.epoch

    @property
    def lag(self) -> float | None:
        """Seconds since the leader's last sign of life was seen; None in the leader, and before the first."""
        return None if self.leads or self._leader_seen_at is None else self._authority.clock() - self._leader_seen_at

    @property
    def epoch(self) -> int:
        """The epoch in which this member leads, or whose decisions it follows; 0 before the first."""
        leader = self.records.leader
        return self.election.epoch if self.election.role != "follower" else leader.epoch if leader else 0

    @property
    def refused(self) -> str:
        """What of the store is refused, and why; empty where nothing is."""
        return refusals(self.store.refused)

    @property
    def leader(self) -> MemberInfo | None:
        """What the member that leads has said last; None where none does."""
        return next((item for item in self.members if item.role == "leader"), None)

    @property
    def differing(self) -> tuple[str, ...]:
        """The members whose files are not the leader's; none where no member leads."""
        leader = self.leader
        return tuple(item.name for item in self.members if leader is not None and item.digest != leader.digest)

    @property
    def leader_api(self) -> str:
        """The URL of the leader's API; empty where it is unknown, and in the leader."""
        leader = self.records.leader
        if self.election.role == "leader" or self.leads or leader is None or leader.member == self.name:
            return ""
        announced = any((item.name, item.api) == (leader.member, leader.api) for item in self.members)
        return leader.api if announced else ""

    # ── The start ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def prepare(self) -> None:
        """Read what the leader serves, so that the first fleet of this process is the same. Raises StoreError."""
        for entry in await self._state.entries(FOLLOWED):
            self._take(entry.key, entry.value)
        self._parts.reconciler.follow(self.records.fleet if await self.store.leader() else None)

    # ── The tasks ────────────────────────────────────────────────────────────────────────────────────────────────────

    def tasks(self) -> Mapping[str, Work]:
        """Return the tasks of a member by name; they run as long as the process."""
        return {"lease": self.election.run, "role of this member": self.run, "members": self._announce}

    async def run(self) -> None:
        """Lead or follow, as the election says, until the task is cancelled."""
        self._leads, self._taken_over = False, 0
        if self.election.role != "follower":
            self.election.changed.set()  # this task has failed before, and the lease is still held
        try:
            await self._switch(self._following)
            while True:
                await self.election.changed.wait()
                self.election.changed.clear()
                await self._take_role()
        finally:
            await self._switch({})

    async def _take_role(self) -> None:
        role = self.election.role
        self._news.role_changed(self.name, role, self.election.epoch)
        if role == "leader":
            while not await self._lead():
                await asyncio.sleep(_RETRY)
                if self.election.role != "leader":
                    self.election.changed.set()
                    return
        elif role == "isolated" and self._leads:
            self.sharing.alone()
            await self._switch({**self._role_tasks.deciding, **self._role_tasks.not_acting})
        else:
            self._leads = False
            self._parts.reconciler.follow(self._parts.reconciler.fleet)
            self._parts.telemetry.rest()
            await self._switch(self._following)

    async def _lead(self) -> bool:
        """Take over from what is stored and what this member knows. Returns False where the store fails meanwhile."""
        started = time.perf_counter()
        await self._switch({})
        try:
            epoch = self.election.epoch
            await write_format(self.store, epoch, signed=bool(self.store.keys.keys))
            if await self._led_last():
                self._parts.history.save_all()
            else:
                await self._take_records()
                self.records.restore_history()
            self._last_epoch = epoch
            await self._write_leader()
            self._parts.telemetry.restart()
            await self._parts.reconciler.lead()
            await self._parts.overrides.save()
            await self._parts.rollouts.save()
            await self.sharing.take_over(self.members)
        except (StoreError, NotSavedError) as error:
            log.error("this member cannot take over yet", reason=error)
            return False
        self._leads, self._taken_over = True, epoch
        self.takeovers += 1
        log.event("took over", epoch=epoch, seconds=time.perf_counter() - started)
        own_tasks = {"sign of life": self._live, "records of the store": self._keep_records}
        await self._switch({**self._role_tasks.deciding, **self._role_tasks.acting, **own_tasks})
        return True

    async def _led_last(self) -> bool:
        """Return whether nobody has led since this member did, so that it knows more than is stored."""
        for entry in await self._state.entries([LEADER]):
            with suppress(*UNREADABLE):
                status = read_leader(entry.value)
                return self._last_epoch > 0 and (status.member, status.epoch) == (self.name, self._last_epoch)
        return self._last_epoch > 0

    async def _take_records(self) -> None:
        """Take over what is stored; values that cannot be read are kept under another key."""
        for entry in await self._state.entries(FOLLOWED):
            if not self._take(entry.key, entry.value):
                await self._state.save_raw(f"damaged/{entry.key}", entry.value)

    async def _switch(self, tasks: Mapping[str, Work]) -> None:
        """Run these tasks and no others; those that run already go on."""
        await end_tasks([self._running.pop(name) for name in list(self._running) if name not in tasks])
        for name, work in tasks.items():
            if name not in self._running:
                self._running[name] = self._guard.start(name, work)

    # ── The leader ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _live(self) -> None:
        while True:
            with suppress(StoreError):
                await self._write_leader()
            await asyncio.sleep(INTERVAL)

    async def _keep_records(self) -> None:
        """Sign what members without a key, or with an older one, have stored. Then undo what others change."""
        is_signed = False
        while True:
            with suppress(StoreError):
                if not is_signed and (count := await self.store.sign_again(self.election.epoch)):
                    log.event("records of the store are signed again", records=count)
                is_signed = True
                if changed := await self._state.write_again(FOLLOWED):
                    log.warn("records that others had changed in the store are written again", keys=",".join(changed))
            await asyncio.sleep(_LOOK)

    async def _write_leader(self) -> None:
        api, _ = self._addresses()
        status = LeaderStatus(self.name, self.election.epoch, api, self.clock.now(), self._version())
        await self._state.save_raw(LEADER, write_leader(status))

    def _version(self) -> str:
        served = self._parts.live.served
        return served.cached_snapshot.version if served else ""

    @property
    def _following(self) -> Mapping[str, Work]:
        """The tasks of a follower by name."""
        scraping = self._parts.telemetry.tasks_of_scraping()
        return {"following": self._follow, **scraping, **self._role_tasks.not_acting}

    # ── A follower ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _follow(self) -> None:
        """Apply what the leader writes until the task is cancelled."""
        while True:
            try:
                await self._watch()
            except StoreError:
                await asyncio.sleep(_RETRY)  # the election logs it

    async def _watch(self) -> None:
        changes: asyncio.Queue[KeyChange | StoreError] = asyncio.Queue()
        reader = asyncio.create_task(_read(self._state, changes))
        keys = {LEADER}
        try:
            while True:
                batch = [await changes.get()]
                self.catching_up = True
                await asyncio.sleep(_SETTLE)
                while not changes.empty():
                    batch.append(changes.get_nowait())
                for item in batch:
                    if isinstance(item, StoreError):
                        raise item
                await self._apply([item for item in batch if isinstance(item, KeyChange)], keys)
                self.catching_up = not changes.empty()
        finally:
            self.catching_up = False
            await end_tasks([reader], _READER_ENDS)

    async def _apply(self, changes: Iterable[KeyChange], first: set[str]) -> None:
        """Apply changes, and publish what they lead to. `first` has the keys whose first value may be old."""
        files, others = False, False
        for change in changes:
            if change.entry is None or not self._take(change.key, change.entry.value):
                continue
            if change.key == LEADER:
                self._see_leader(live=LEADER not in first)
                first.discard(LEADER)
            files = files or change.key == "fleet/files"
            others = others or change.key not in _PUBLISHES_NOTHING
        if files:
            self._parts.reconciler.follow(self.records.fleet)
            await self._parts.reconciler.reload()
        elif others:
            await self._parts.live.apply(self._parts.live.inputs, "the leader", save=False)

    def _take(self, key: str, value: str) -> bool:
        """Take over a record, to be published by the caller. Returns whether it can be read."""
        parts, before = self._parts, self._parts.live.inputs
        inputs = self.records.read(key, value, before)
        if inputs is None:
            return False
        parts.live.stage(inputs)
        if inputs.overrides is not before.overrides:
            parts.overrides.adopt()
        if inputs.rollouts is not before.rollouts:
            parts.rollouts.adopt(before.rollouts)
        if inputs.decisions is not before.decisions:
            parts.telemetry.adopt()
        return True

    def _see_leader(self, *, live: bool) -> None:
        leader = self.records.leader
        if leader is None or not live:
            return
        self._leader_seen_at = self._authority.clock()
        self.clock.adjust(leader.at)
        skewed = abs(self.clock.offset) > _SKEW
        if skewed and not self._skewed:
            log.warn(
                "the clock of this machine differs from the leader's", leader=leader.member, seconds=self.clock.offset
            )
        self._skewed = skewed

    # ── What members say about themselves ────────────────────────────────────────────────────────────────────────────

    async def _announce(self) -> None:
        while True:
            own = await self.info()
            self._known.replace(tuple(own if item.name == self.name else item for item in self.members))
            announced = await self._exchange(own)
            self.sharing.check()
            if announced is not None:
                self._known.replace(tuple(replace(item, samples="") for item in announced))
                self._tell_differing()
            if self.leads:
                await self.sharing.lead(announced)
            await asyncio.sleep(INTERVAL)

    def _tell_differing(self) -> None:
        before, self._differing = self._differing, self.differing
        if self._differing != before:
            self._news.files_differ(self._differing)

    async def _exchange(self, own: MemberInfo) -> tuple[MemberInfo, ...] | None:
        """Announce this member, and return what all have announced; None where the store does not answer."""
        asked_at = self._authority.clock()
        try:
            info = write_info(replace(own, samples=await self.sharing.samples()))
            await self.store.announce(self.name, info, TTL)
            self.sharing.renewed(asked_at)
            return read_infos(await self.store.members())
        except StoreError:
            return None

    async def info(self) -> MemberInfo:
        """Return what this member says about itself now."""
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
        )


async def _read(state: SavedState, changes: asyncio.Queue[KeyChange | StoreError]) -> None:
    try:
        async for change in state.watch(FOLLOWED):
            changes.put_nowait(change)
    except StoreError as error:
        changes.put_nowait(error)

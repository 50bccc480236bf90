"""What every store of the control plane's state must do. A new store is one line in STORES."""

from __future__ import annotations

import asyncio
import base64
import resource
import secrets
import sqlite3
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from lbctl.control.rollouts import EndedRollout, RolloutState
from lbctl.serve.state.interface import (
    ABSENT,
    ConflictError,
    FencedError,
    KeyChange,
    LeaseHeldError,
    StateStore,
    StoreError,
    changes_between,
)
from lbctl.serve.state.memory import MemoryStore, SharedMemory
from lbctl.serve.state.saved import SavedState
from lbctl.serve.state.sqlite import SqliteStore
from tests.support.stores import STORES as SHARED
from tests.support.stores import EtcdServer, opened, shared_server


class Handles:
    """Makes handles of one and the same store."""

    opened: ClassVar[list[StateStore]] = []

    def __init__(self, open_: Callable[[], StateStore]) -> None:
        self._open = open_

    def __call__(self) -> StateStore:
        self.opened.append(self._open())
        return self.opened[-1]


def memory(_: Path) -> Handles:
    shared = SharedMemory()
    return Handles(lambda: MemoryStore(shared))


def sqlite(directory: Path) -> Handles:
    return Handles(lambda: SqliteStore.open(directory))


def shared(scheme: str) -> Callable[[Path], Handles]:
    """Handles of one key space of a real server that all tests of a process share."""

    def made(_: Path) -> Handles:
        prefix = f"test:{secrets.token_hex(4)}"
        return Handles(lambda: opened(scheme, prefix, f"cp-{secrets.token_hex(2)}", lease=10_000))

    return made


STORES = {"memory": memory, "sqlite": sqlite, **{scheme: shared(scheme) for scheme in SHARED}}


@pytest.fixture(params=STORES)
def handles(request: pytest.FixtureRequest, tmp_path: Path) -> Handles:
    return STORES[request.param](tmp_path / "state")


def run(work: Callable[[], Awaitable[None]]) -> None:
    """Runs the work, and closes the handles that it has opened, in the same event loop."""

    async def bounded() -> None:
        try:
            async with asyncio.timeout(20):
                await work()
        finally:
            for store in Handles.opened:
                await store.close()
            Handles.opened.clear()

    asyncio.run(bounded())


# ── The lease ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_handle_leads_and_every_new_leader_has_a_greater_epoch(handles: Handles) -> None:
    async def work() -> None:
        first, second = handles(), handles()
        lease = await first.acquire()
        assert await first.renew() == lease
        with pytest.raises(LeaseHeldError) as held:
            await second.acquire()
        assert held.value.holder
        assert first.location in str(held.value)
        await first.release()
        later = await second.acquire()
        assert later.epoch > lease.epoch
        await second.release()
        assert (await first.acquire()).epoch > later.epoch

    run(work)


def test_an_emptied_etcd_gives_no_epoch_again_after_a_leader_whose_clock_was_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        prefix = f"test:{secrets.token_hex(4)}"
        handles = Handles(lambda: opened("etcd", prefix, f"cp-{secrets.token_hex(2)}", lease=10_000))
        ahead, other = handles(), handles()
        now = time.time()
        with monkeypatch.context() as clock:
            clock.setattr(time, "time", lambda: now + 300)
            lease = await ahead.acquire()
        with pytest.raises(LeaseHeldError):
            await other.acquire()
        server = shared_server("etcd")
        assert isinstance(server, EtcdServer)
        first, last = (base64.b64encode(f"{prefix}{end}".encode()).decode() for end in "/0")
        server.call("kv/deleterange", {"key": first, "range_end": last})
        assert (await other.acquire()).epoch > lease.epoch

    run(work)


def test_a_lease_that_was_given_up_cannot_be_renewed(handles: Handles) -> None:
    async def work() -> None:
        store = handles()
        with pytest.raises(FencedError):
            await store.renew()
        await store.acquire()
        await store.release()
        await store.release()
        with pytest.raises(FencedError):
            await store.renew()

    run(work)


def test_the_writes_of_an_earlier_leader_are_refused_and_change_nothing(handles: Handles) -> None:
    async def work() -> None:
        first, second = handles(), handles()
        old = (await first.acquire()).epoch
        entry = await first.put("key", "first", ABSENT, old)
        await first.release()
        await second.acquire()
        with pytest.raises(FencedError):
            await first.put("key", "late", entry.version, old)
        with pytest.raises(FencedError):
            await first.put("other", "late", ABSENT, old)
        with pytest.raises(FencedError):
            await first.delete("key", entry.version, old)
        assert await second.read() == (entry,)

    run(work)


def test_an_epoch_that_nobody_has_had_is_refused(handles: Handles) -> None:
    async def work() -> None:
        store = handles()
        epoch = (await store.acquire()).epoch
        with pytest.raises(FencedError):
            await store.put("key", "value", ABSENT, epoch + 1)

    run(work)


# ── Compare and set ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_write_names_the_version_that_it_replaces(handles: Handles) -> None:
    async def work() -> None:
        store = handles()
        epoch = (await store.acquire()).epoch
        first = await store.put("key", "1", ABSENT, epoch)
        with pytest.raises(ConflictError):
            await store.put("key", "2", ABSENT, epoch)
        second = await store.put("key", "2", first.version, epoch)
        assert second.version != first.version
        with pytest.raises(ConflictError):
            await store.put("key", "3", first.version, epoch)
        with pytest.raises(ConflictError):
            await store.put("unknown", "3", first.version, epoch)
        assert await store.read() == (second,)

    run(work)


def test_a_key_that_was_deleted_and_written_again_has_no_version_that_it_had(handles: Handles) -> None:
    async def work() -> None:
        store = handles()
        epoch = (await store.acquire()).epoch
        first = await store.put("key", "same", ABSENT, epoch)
        with pytest.raises(ConflictError):
            await store.delete("key", ABSENT, epoch)
        await store.delete("key", first.version, epoch)
        assert await store.read() == ()
        again = await store.put("key", "same", ABSENT, epoch)
        assert again.version not in (first.version, ABSENT)

    run(work)


def test_of_writers_that_race_with_one_version_exactly_one_wins(handles: Handles) -> None:
    async def work() -> None:
        leader, other = handles(), handles()
        epoch = (await leader.acquire()).epoch
        version = (await leader.put("key", "0", ABSENT, epoch)).version
        for turn in range(20):
            writes = (
                store.put("key", f"{turn} {number}", version, epoch) for number, store in enumerate((leader, other) * 3)
            )
            results = await asyncio.gather(*writes, return_exceptions=True)
            won = [result for result in results if not isinstance(result, BaseException)]
            assert len(won) == 1
            assert all(isinstance(result, ConflictError) for result in results if result is not won[0])
            assert await other.read("key") == (won[0],)
            version = won[0].version

    run(work)


# ── Reading and watching ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_prefix_is_compared_character_by_character_and_keys_come_in_their_order(handles: Handles) -> None:
    async def work() -> None:
        store = handles()
        epoch = (await store.acquire()).epoch
        for key in ("b/2", "a%", "b/1", "a_", "ax", "b"):
            await store.put(key, f'"{key}" ü\u2028', ABSENT, epoch)
        assert [entry.key for entry in await store.read()] == ["a%", "a_", "ax", "b", "b/1", "b/2"]
        assert [entry.key for entry in await store.read("b/")] == ["b/1", "b/2"]
        assert [entry.value for entry in await store.read("a%")] == ['"a%" ü\u2028']

    run(work)


def test_another_handle_reads_what_was_acknowledged_without_a_lease(handles: Handles) -> None:
    async def work() -> None:
        leader, standby = handles(), handles()
        epoch = (await leader.acquire()).epoch
        large = await leader.put("large", "x" * 1_000_000, ABSENT, epoch)
        assert await standby.read() == (large,)

    run(work)


def test_a_watch_reports_what_is_there_and_then_every_change_of_its_prefix(handles: Handles) -> None:
    async def work() -> None:
        leader, standby = handles(), handles()
        epoch = (await leader.acquire()).epoch
        there = await leader.put("w/a", "1", ABSENT, epoch)
        changes = standby.watch("w/")
        assert await anext(changes) == KeyChange("w/a", there)
        await leader.put("other", "1", ABSENT, epoch)
        new = await leader.put("w/b", "2", ABSENT, epoch)
        assert await anext(changes) == KeyChange("w/b", new)
        await leader.delete("w/a", there.version, epoch)
        assert await anext(changes) == KeyChange("w/a", None)

    run(work)


def test_nothing_has_changed_between_equal_readings() -> None:
    assert changes_between((), ()) == ()


# ── The records above any store ──────────────────────────────────────────────────────────────────────────────────────


def test_rollouts_and_the_audit_come_back_from_any_store(handles: Handles) -> None:
    async def work() -> None:
        store = handles()
        state = SavedState(store, pytest.fail)
        await state.lead(pytest.fail)
        assert await state.rollouts() == ()
        moved = RolloutState(
            "chat", "k", (("new", 0), ("old", 1)), "paused", 1, 12.5, 99.5, 3.25, 2.5, "asked", models="d"
        )
        earlier = EndedRollout("j", (("new", 0), ("old", 1)), "promoted", 2, 100.0, "good")
        moved = replace(moved, earlier=(earlier,))
        await state.save_rollouts((RolloutState("chat", "k", ()),))
        await state.save_rollouts((moved, RolloutState("embed", "k", ())))
        assert await state.rollouts() == (moved, RolloutState("embed", "k", ()))
        for number in range(1, 4):
            await state.append_audit("2026-01-01T00:00:00.000Z", "anna", "drain", f"p/{number}", "hot")
        again = SavedState(store, pytest.fail)
        again.lease = state.lease
        await again.append_audit("2026-01-01T00:00:01.000Z", "lbctl", "end drain", "p/1", "")
        audit = await state.audit()
        assert [(item.number, item.actor, item.subject) for item in audit] == [
            (1, "anna", "p/1"), (2, "anna", "p/2"), (3, "anna", "p/3"), (4, "lbctl", "p/1"),
        ]  # fmt: skip
        assert [item.previous for item in audit] == ["", *(item.hash for item in audit[:-1])]

    run(work)


def test_a_state_whose_lease_is_lost_saves_nothing_more(handles: Handles) -> None:
    async def work() -> None:
        store = handles()
        state = SavedState(store, pytest.fail)
        with pytest.raises(FencedError):
            await state.save_drains({("p", "a"): 1.0})
        await state.lead(pytest.fail)
        await state.save_drains({("p", "a"): 1.0})
        await store.release()
        await handles().acquire()
        with pytest.raises(FencedError):
            await state.save_drains({("p", "a"): 2.0})
        assert await state.drains() == {("p", "a"): 1.0}

    run(work)


def test_a_write_whose_end_was_not_seen_does_not_stop_the_next_one(handles: Handles) -> None:
    async def work() -> None:
        store = handles()
        state = SavedState(store, pytest.fail)
        epoch = (await state.lead(pytest.fail)).epoch
        await state.save_drains({("p", "a"): 1.0})
        (entry,) = await store.read("drains")
        await store.put("drains", "[]", entry.version, epoch)
        await state.save_drains({("p", "a"): 2.0})
        assert await state.drains() == {("p", "a"): 2.0}

    run(work)


# ── Storage that refuses ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Refusal:
    """Makes the database of `directory` refuse writes while it is entered."""

    directory: Path
    kind: str

    def __enter__(self) -> None:
        if self.kind == "full":
            self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, self.before[1]))
        else:
            self.other = sqlite3.connect(self.directory / "lbctl.db", timeout=0, isolation_level=None)
            self.other.execute(
                "CREATE TRIGGER refuse BEFORE INSERT ON entries BEGIN SELECT RAISE(ABORT, 'refused'); END"
            )

    def __exit__(self, *_: object) -> None:
        if self.kind == "full":
            resource.setrlimit(resource.RLIMIT_FSIZE, self.before)
        else:
            self.other.execute("DROP TRIGGER refuse")
            self.other.close()


@pytest.mark.parametrize("kind", ["full", "refused"])
def test_a_database_that_cannot_be_written_acknowledges_nothing(tmp_path: Path, kind: str) -> None:
    async def work() -> None:
        store = SqliteStore.open(tmp_path)
        epoch = (await store.acquire()).epoch
        known = await store.put("key", "good", ABSENT, epoch)
        with Refusal(tmp_path, kind):
            with pytest.raises(StoreError) as error:
                await store.put("key", "x" * 1_000_000, known.version, epoch)
            assert not isinstance(error.value, (ConflictError, FencedError))
            assert await store.read() == (known,)
        await store.put("key", "again", known.version, epoch)
        await store.close()

    run(work)


def test_a_database_that_is_read_only_is_a_store_error(tmp_path: Path) -> None:
    async def work() -> None:
        store = SqliteStore.open(tmp_path)
        epoch = (await store.acquire()).epoch
        await store.put("key", "good", ABSENT, epoch)
        assert store._database is not None
        store._database.execute("PRAGMA query_only = 1")
        with pytest.raises(StoreError, match="readonly"):
            await store.put("other", "value", ABSENT, epoch)
        await store.close()

    run(work)

"""Behaviour of every store of the control plane's state. A new store is one line in STORES."""

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
from lbctl.store.interface import (
    ABSENT,
    ConflictError,
    FencedError,
    KeyChange,
    LeaseHeldError,
    StateStore,
    StoreError,
    changes_between,
)
from lbctl.store.memory import MemoryStore, SharedMemory
from lbctl.store.saved import SavedState
from lbctl.store.sqlite import SqliteStore
from tests.support.stores import STORES as SHARED
from tests.support.stores import EtcdServer, opened, shared_server


class Handles:
    """Opens handles of the same store."""

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
    """Return handles of a new key space in a real server that all tests of a process share."""

    def handles_of_new_prefix(_: Path) -> Handles:
        prefix = f"test:{secrets.token_hex(4)}"
        return Handles(lambda: opened(scheme, prefix, f"cp-{secrets.token_hex(2)}", lease=10_000))

    return handles_of_new_prefix


STORES = {"memory": memory, "sqlite": sqlite, **{scheme: shared(scheme) for scheme in SHARED}}


@pytest.fixture(params=STORES)
def handles(request: pytest.FixtureRequest, tmp_path: Path) -> Handles:
    return STORES[request.param](tmp_path / "state")


def run(work: Callable[[], Awaitable[None]]) -> None:
    """Run the work, and close the handles that it opened in the same event loop."""

    async def bounded() -> None:
        try:
            async with asyncio.timeout(60):
                await work()
        finally:
            for store in Handles.opened:
                await store.close()
            Handles.opened.clear()

    asyncio.run(bounded())


# ── The lease ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_new_leader_has_a_greater_epoch(handles: Handles) -> None:
    async def work() -> None:
        first, second = handles(), handles()
        lease = await first.acquire()
        assert await first.renew() == lease
        with pytest.raises(LeaseHeldError) as error:
            await second.acquire()
        assert error.value.holder
        assert first.location in str(error.value)
        await first.release()
        later = await second.acquire()
        assert later.epoch > lease.epoch
        await second.release()
        assert (await first.acquire()).epoch > later.epoch

    run(work)


def test_emptied_etcd_reuses_no_epoch_of_a_clock_that_was_ahead(
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


def test_released_lease_cannot_be_renewed(handles: Handles) -> None:
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


def test_writes_of_an_earlier_leader_are_rejected(handles: Handles) -> None:
    async def work() -> None:
        first, second = handles(), handles()
        first_epoch = (await first.acquire()).epoch
        entry = await first.put("key", "first", ABSENT, first_epoch)
        await first.release()
        await second.acquire()
        with pytest.raises(FencedError):
            await first.put("key", "late", entry.version, first_epoch)
        with pytest.raises(FencedError):
            await first.put("other", "late", ABSENT, first_epoch)
        with pytest.raises(FencedError):
            await first.delete("key", entry.version, first_epoch)
        assert await second.read() == (entry,)

    run(work)


def test_unknown_epoch_is_rejected(handles: Handles) -> None:
    async def work() -> None:
        store = handles()
        epoch = (await store.acquire()).epoch
        with pytest.raises(FencedError):
            await store.put("key", "value", ABSENT, epoch + 1)

    run(work)


# ── Compare and set ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_write_requires_the_current_version(handles: Handles) -> None:
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


def test_recreated_key_has_a_new_version(handles: Handles) -> None:
    async def work() -> None:
        store = handles()
        epoch = (await store.acquire()).epoch
        first = await store.put("key", "same", ABSENT, epoch)
        with pytest.raises(ConflictError):
            await store.delete("key", ABSENT, epoch)
        await store.delete("key", first.version, epoch)
        assert await store.read() == ()
        recreated = await store.put("key", "same", ABSENT, epoch)
        assert recreated.version not in (first.version, ABSENT)

    run(work)


def test_exactly_one_of_racing_writers_wins(handles: Handles) -> None:
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


def test_prefix_is_literal_and_keys_are_sorted(handles: Handles) -> None:
    async def work() -> None:
        store = handles()
        epoch = (await store.acquire()).epoch
        for key in ("b/2", "a%", "b/1", "a_", "ax", "b"):
            await store.put(key, f'"{key}" ü\u2028', ABSENT, epoch)
        assert [entry.key for entry in await store.read()] == ["a%", "a_", "ax", "b", "b/1", "b/2"]
        assert [entry.key for entry in await store.read("b/")] == ["b/1", "b/2"]
        assert [entry.value for entry in await store.read("a%")] == ['"a%" ü\u2028']

    run(work)


def test_another_handle_reads_without_a_lease(handles: Handles) -> None:
    async def work() -> None:
        leader, standby = handles(), handles()
        epoch = (await leader.acquire()).epoch
        large = await leader.put("large", "x" * 1_000_000, ABSENT, epoch)
        assert await standby.read() == (large,)

    run(work)


def test_watch_reports_current_entries_and_every_change(handles: Handles) -> None:
    async def work() -> None:
        leader, standby = handles(), handles()
        epoch = (await leader.acquire()).epoch
        existing = await leader.put("w/a", "1", ABSENT, epoch)
        changes = standby.watch("w/")
        assert await anext(changes) == KeyChange("w/a", existing)
        await leader.put("other", "1", ABSENT, epoch)
        added = await leader.put("w/b", "2", ABSENT, epoch)
        assert await anext(changes) == KeyChange("w/b", added)
        await leader.delete("w/a", existing.version, epoch)
        assert await anext(changes) == KeyChange("w/a", None)

    run(work)


def test_equal_readings_have_no_changes() -> None:
    assert changes_between((), ()) == ()


# ── Records in any store ─────────────────────────────────────────────────────────────────────────────────────────────


def test_rollouts_and_audit_are_restored(handles: Handles) -> None:
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


def test_state_without_a_lease_saves_nothing(handles: Handles) -> None:
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


def test_unconfirmed_write_does_not_block_the_next_one(handles: Handles) -> None:
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


# ── Storage that rejects writes ──────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Refusal:
    """Makes the database in `directory` reject writes inside the block."""

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
def test_unwritable_database_acknowledges_nothing(tmp_path: Path, kind: str) -> None:
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


def test_read_only_database_is_a_store_error(tmp_path: Path) -> None:
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

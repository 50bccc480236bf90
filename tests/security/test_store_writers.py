"""Other writers to the store: their entries are rejected, reported, and replaced at the next write of a member."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from lbctl.api import schema
from lbctl.serve.ha.format import KEY, check_format, write_format
from lbctl.serve.ha.presence import MemberInfo, read_infos, write_info
from lbctl.store.interface import ABSENT, LeaseHeldError, UnusableError
from lbctl.store.signed_store import SignedStore, refusals
from tests.support.member import Running, fleet_with, running, served, until, write_keys
from tests.support.stores import STORES, RedisServer, opened, shared_server, write_foreign

KEY_A, KEY_B = "a-key-of-this-control-plane-only", "the-next-key-of-the-same-members"
UNSIGNED, FORGED, OLDER = (
    "it is not signed",
    "it was not signed with one of this control plane's keys",
    "it is older than the version",
)


class KeySpace:
    """The store handles of one key space: members with key files, and a stranger that can only write."""

    def __init__(self, scheme: str, directory: Path) -> None:
        self.scheme = scheme
        self._directory = directory
        self.prefix = f"test:{secrets.token_hex(4)}"
        self._opened: list[SignedStore] = []

    def member(self, name: str, *keys: str) -> SignedStore:
        """Open a handle of a member whose key file has these lines, or of one without a key file if there are none."""
        more = {"key_file": write_keys(self._directory, *keys)} if keys else {}
        store = opened(self.scheme, self.prefix, name, lease=20_000, **more)
        assert isinstance(store, SignedStore)
        self._opened.append(store)
        return store

    def stranger(self) -> SignedStore:
        """Open a handle that signs nothing."""
        return self.member("stranger")

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        async def bounded() -> None:
            try:
                async with asyncio.timeout(120):
                    await work()
            finally:
                for store in self._opened:
                    await store.close()

        asyncio.run(bounded())


@pytest.fixture(params=STORES)
def space(request: pytest.FixtureRequest, tmp_path: Path) -> KeySpace:
    return KeySpace(request.param, tmp_path)


async def written(store: SignedStore, **values: str) -> None:
    """Write each value as the leader."""
    epoch = (await store.acquire()).epoch
    for key, value in values.items():
        there = {entry.key: entry.version for entry in await store.read(key)}
        await store.put(key, value, there.get(key, ABSENT), epoch)


async def raw(store: SignedStore, key: str) -> str:
    """Return a value as it is stored."""
    return next(entry.value for entry in await store._store.read(key) if entry.key == key)


async def put_raw(store: SignedStore, key: str, value: str) -> None:
    """Write a value as a stranger does. It takes the lease to do so."""
    epoch = (await store._store.acquire()).epoch
    there = {entry.key: entry.version for entry in await store._store.read(key)}
    await store._store.put(key, value, there.get(key, ABSENT), epoch)
    await store._store.release()


async def values(store: SignedStore) -> dict[str, str]:
    return {entry.key: entry.value for entry in await store.read()}


def test_record_of_a_stranger_is_refused_and_replaced(space: KeySpace) -> None:
    async def work() -> None:
        member, reader, stranger = space.member("cp-1", KEY_A), space.member("cp-2", KEY_A), space.stranger()
        await written(member, overrides="[1]", rollouts="[2]")
        assert await values(reader) == {"overrides": "[1]", "rollouts": "[2]"}
        assert "[1]" in await raw(stranger, "overrides"), "it is readable"
        await member.release()
        copied = await raw(stranger, "rollouts")
        for value, reason in (("[9]", UNSIGNED), (copied, FORGED)):
            await put_raw(stranger, "overrides", value)
            assert await values(reader) == {"rollouts": "[2]"}
            assert reason in refusals(reader.refused)
            assert "overrides" in refusals(reader.refused)
            assert await values(member) == {"rollouts": "[2]"}
            await written(member, overrides="[3]")
            assert await values(reader) == {"overrides": "[3]", "rollouts": "[2]"}
            assert not reader.refused
            await member.release()

    space.run(work)


def test_replayed_record_is_refused(space: KeySpace) -> None:
    async def work() -> None:
        member, reader, stranger = space.member("cp-1", KEY_A), space.member("cp-2", KEY_A), space.stranger()
        await written(member, overrides="[1]")
        before = await raw(stranger, "overrides")
        await written(member, overrides="[2]")
        assert await values(reader) == {"overrides": "[2]"}
        await member.release()
        await put_raw(stranger, "overrides", before)
        for each in (member, reader):
            assert await values(each) == {}
            assert OLDER in refusals(each.refused)

    space.run(work)


def test_watch_leaves_out_what_a_stranger_writes(space: KeySpace) -> None:
    async def work() -> None:
        member, reader, stranger = space.member("cp-1", KEY_A), space.member("cp-2", KEY_A), space.stranger()
        await written(member, overrides="[1]")
        await member.release()
        seen: list[str] = []
        changes = reader.watch("overrides")

        async def watch() -> None:
            async for change in changes:
                seen.append(change.entry.value if change.entry else "")  # noqa: PERF401 -- the stream has no end

        task = asyncio.create_task(watch())
        await until(lambda: seen == ["[1]"])
        await put_raw(stranger, "overrides", "[9]")
        await until(lambda: "overrides" in reader.refused)
        await written(member, overrides="[2]")
        await until(lambda: seen[-1] == "[2]")
        assert seen == ["[1]", "[2]"]
        task.cancel()

    space.run(work)


def test_lease_of_a_stranger_is_named(space: KeySpace) -> None:
    async def work() -> None:
        member, other, stranger = space.member("cp-1", KEY_A), space.member("cp-2", KEY_A), space.stranger()
        await member.acquire()
        with pytest.raises(LeaseHeldError, match="in use by cp-1"):
            await other.acquire()
        await member.release()
        await stranger.acquire()
        with pytest.raises(UnusableError, match="in use by stranger, which has none of this control plane's keys"):
            await member.acquire()
        await stranger.release()
        await other.acquire()

    space.run(work)


def test_epoch_that_no_member_has_written_is_named(space: KeySpace) -> None:
    async def work() -> None:
        member = space.member("cp-1", KEY_A)
        write_foreign(shared_server(space.scheme), space.prefix, "epoch", str(10**17))
        with pytest.raises(UnusableError, match=r"epoch 1e\+17, which no member|a leader that lbctl did not write"):
            await member.acquire()
        if space.scheme != "kubernetes":
            assert await member.leader() == "", "it does not keep the lease"

    space.run(work)


def test_what_strangers_write_is_shown_in_one_line() -> None:
    assert str(LeaseHeldError("Redis", "cp-1")) == "Redis is in use by cp-1"
    for holder in ("\x1b[31mred\n", "x" * 10_000):
        message = str(LeaseHeldError("Redis", holder))
        assert message.isprintable()
        assert len(message) < 300


def test_forged_announcements_are_refused(space: KeySpace) -> None:
    async def work() -> None:
        member, reader, stranger = space.member("cp-1", KEY_A), space.member("cp-2", KEY_A), space.stranger()
        await member.announce("cp-1", write_info(MemberInfo("cp-1", api="http://127.0.0.1:1")), 60)
        assert [item.api for item in read_infos(await reader.members())] == ["http://127.0.0.1:1"]
        (before,) = await stranger._store.members()
        await stranger.announce("cp-1", write_info(MemberInfo("cp-1", api="http://127.0.0.1:2")), 60)
        assert await reader.members() == ()
        assert UNSIGNED in reader.refused["member cp-1"]
        await stranger.announce("cp-1", before.value, 60)
        assert await reader.members() == ()
        assert FORGED in reader.refused["member cp-1"], "it is signed for another handle"
        await member.announce("cp-1", write_info(MemberInfo("cp-1")), 60)
        assert [item.member for item in await reader.members()] == ["cp-1"]
        assert not reader.refused
        await stranger.announce("cp-9", write_info(MemberInfo("cp-9")), 60)
        assert [item.member for item in await reader.members()] == ["cp-1"]

    space.run(work)


def test_replayed_announcement_is_refused(space: KeySpace) -> None:
    async def work() -> None:
        member, reader, stranger = space.member("cp-1", KEY_A), space.member("cp-2", KEY_A), space.stranger()
        await member.announce("cp-1", write_info(MemberInfo("cp-1")), 60)
        (before,) = await stranger._store.members()
        await member.announce("cp-1", write_info(MemberInfo("cp-1")), 60)
        assert [item.member for item in await reader.members()] == ["cp-1"]
        inner = stranger._store
        inner.instance = member.instance  # type: ignore[misc]
        await inner.announce("cp-1", before.value, 60)
        assert await reader.members() == ()
        assert OLDER in reader.refused["member cp-1"]

    space.run(work)


# ── Rotation of keys ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_key_is_replaced_without_losing_records(space: KeySpace) -> None:
    async def work() -> None:
        first = space.member("cp-1", KEY_A)
        await written(first, overrides="[1]", rollouts="[2]")
        await first.release()
        assert await values(space.member("cp-2", KEY_B)) == {}
        for keys, signed in (((KEY_A, KEY_B), 0), ((KEY_B, KEY_A), 2), ((KEY_B,), 0)):
            member = space.member("cp-1", *keys)
            assert await values(member) == {"overrides": "[1]", "rollouts": "[2]"}
            assert await member.sign_again((await member.acquire()).epoch) == signed
            await member.release()

    space.run(work)


def test_records_without_a_signature_are_taken_over_on_request(space: KeySpace) -> None:
    async def work() -> None:
        plain, changing = space.member("cp-1"), space.member("cp-2", KEY_A, "unsigned")
        await written(plain, overrides="[1]")
        await plain.release()
        assert await values(changing) == {"overrides": "[1]"}
        assert await values(space.member("cp-3", KEY_A)) == {}
        epoch = (await changing.acquire()).epoch
        assert await changing.sign_again(epoch) == 1
        assert await values(plain) == {"overrides": "[1]"}, "a member without a key reads what is signed"
        strict = space.member("cp-3", KEY_A)
        assert await values(strict) == {"overrides": "[1]"}
        assert not strict.refused

    space.run(work)


def test_earlier_versions_leave_signed_records_alone(space: KeySpace, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        plain, signing = space.member("cp-1"), space.member("cp-2", KEY_A, "unsigned")
        await write_format(plain, (await plain.acquire()).epoch, signed=False)
        await plain.release()
        assert json.loads(await raw(plain, KEY)) == {"lbctl": 1}
        epoch = (await signing.acquire()).epoch
        await write_format(signing, epoch, signed=True)
        assert json.loads(await raw(plain, KEY)) == {"lbctl": 2}
        await check_format(plain)
        monkeypatch.setattr("lbctl.serve.ha.format.FORMAT", 1)
        with pytest.raises(UnusableError, match="written by a later version"):
            await check_format(plain)

    space.run(work)


# ── Whole members ────────────────────────────────────────────────────────────────────────────────────────────────────


def drained(member: Running) -> set[str]:
    return {item.replica for item in member.services.api.operation("overrides")().overrides}


def keyed(
    name: str, directory: Path, redis: RedisServer, prefix: str, *keys: str
) -> AbstractAsyncContextManager[Running]:
    """Run a member whose key file has these lines."""
    return running(name, directory, redis.port, prefix, keys="\n".join(keys))


async def drain(member: Running, replica: str) -> None:
    request = schema.OverrideRequest(kind="drain", pool=next(iter(pools(member))), replica=replica)
    await member.services.api.operation("put_override")(request, "operator")


def pools(member: Running) -> set[str]:
    published = member.services.live.served
    assert published is not None
    return {pool.name for pool in published.composed.whole.topology.pools}


def test_members_apply_nothing_that_a_stranger_writes(redis: RedisServer, tmp_path: Path) -> None:
    async def work() -> None:
        prefix = f"test:{secrets.token_hex(4)}"
        async with keyed("cp-1", tmp_path, redis, prefix, KEY_A) as first:
            await until(lambda: first.member.leads)
            await drain(first, "a")
            async with keyed("cp-2", tmp_path, redis, prefix, KEY_A) as second:
                await until(lambda: drained(second) == {"a"})
                fleet = await raw(second.member.store, "fleet/files")
                forged = fleet.partition("{")[1] + fleet.partition("{")[2].replace("10.9.9.8", "203.0.113.9")
                values = f"{{{prefix}}}:values"
                for key, value in (("overrides", "[]"), ("fleet/files", forged), ("rollback", "null")):
                    redis.call("HSET", values, key, value)
                    redis.call("HSET", f"{{{prefix}}}:versions", key, secrets.token_hex(4))
                    redis.call("PUBLISH", f"{{{prefix}}}:changes", key)
                await until(lambda: {"overrides", "fleet/files", "rollback"} <= set(second.member.store.refused))
                assert drained(second) == {"a"}
                assert served(second) == {"a", "b"}
                status = second.services.api.operation("status")()
                texts = [item.text for item in status.problems if item.kind == "store"]
                assert any("store content rejected" in text and UNSIGNED in text for text in texts), texts
                await drain(first, "b")
                await until(lambda: drained(second) == {"a", "b"})
                assert "overrides" not in second.member.store.refused

    asyncio.run(work())


def test_leader_writes_again_what_a_stranger_has_changed(
    redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbctl.serve.ha.leading._LOOK", 0.1)

    async def work() -> None:
        prefix = f"test:{secrets.token_hex(4)}"
        async with keyed("cp-1", tmp_path, redis, prefix, KEY_A) as first:
            await until(lambda: first.member.leads)
            await drain(first, "a")
            stored, index = f"{{{prefix}}}:values", f"{{{prefix}}}:index"
            redis.call("HSET", stored, "overrides", "[]")
            redis.call("ZREM", index, "fleet/files")
            redis.call("HSET", stored, "rollback", "null")
            reader = first.member.store
            while {"overrides", "fleet/files", "rollback"} - {entry.key for entry in await reader.read()}:
                await asyncio.sleep(0.05)
            assert not reader.refused
            async with keyed("cp-2", tmp_path, redis, prefix, KEY_A) as second:
                await until(lambda: drained(second) == {"a"})

    asyncio.run(asyncio.wait_for(work(), 180))


def test_rolling_upgrade_to_a_key_keeps_drains(redis: RedisServer, tmp_path: Path) -> None:
    async def work() -> None:
        prefix = f"test:{secrets.token_hex(4)}"
        async with running("cp-1", tmp_path, redis.port, prefix) as first:
            await until(lambda: first.member.leads)
            await drain(first, "a")
            async with keyed("cp-2", tmp_path, redis, prefix, KEY_A, "unsigned") as second:
                await until(lambda: drained(second) == {"a"})
                await first.member.store.release()
                await until(lambda: second.member.leads)
                assert drained(second) == {"a"}
                await drain(second, "b")
                await until(lambda: drained(first) == {"a", "b"})
                await until(lambda: {item.name for item in first.member.members} == {"cp-1", "cp-2"})
        async with keyed("cp-3", tmp_path, redis, prefix, KEY_A) as third:
            await until(lambda: third.member.leads)
            assert drained(third) == {"a", "b"}
            assert third.member.store.refused.keys() <= {"member cp-1"}, "the announcement of the one that has ended"

    asyncio.run(work())


def test_keyed_member_does_not_follow_an_unsigned_leader(redis: RedisServer, tmp_path: Path) -> None:
    async def work() -> None:
        prefix = f"test:{secrets.token_hex(4)}"
        async with running("cp-1", tmp_path, redis.port, prefix, fleet=fleet_with("c")) as first:
            await until(lambda: first.member.leads)
            async with keyed("cp-2", tmp_path, redis, prefix, KEY_A) as second:
                await until(lambda: "none of this control plane's keys" in second.member.election.problem)
                assert served(second) == {"a", "b"}
                assert second.services.api.forwards_to() is not None
                assert second.member.leader_api == ""

    asyncio.run(work())

"""Behaviour of shared stores only: leases that expire, names of members, foreign content."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import requests

from lbctl.ir.proxies import Store
from lbctl.serve.ha import presence
from lbctl.serve.ha.clock import FleetClock
from lbctl.serve.ha.election import Election
from lbctl.serve.ha.format import FORMAT, KEY, check_format, write_format
from lbctl.serve.membership import join
from lbctl.serve.wiring import Shared
from lbctl.store import kubernetes_lease
from lbctl.store.interface import (
    ABSENT,
    FencedError,
    LeaseHeldError,
    SharedStore,
    StoreError,
    StoreUnreachableError,
    UnusableError,
)
from lbctl.store.lease import Authority
from lbctl.store.open import open_shared
from lbctl.store.saved import SavedState
from tests.support.stores import STORES, AnyServer, EtcdServer, RedisServer, opened, shared_server, write_foreign


class Opener:
    """Opens handles of one key space, and closes them at the end.

    A request to a store times out within a part of the lease, so the lease is long enough for a busy machine.
    """

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme
        self.prefix = f"test:{secrets.token_hex(4)}"
        self.opened: list[SharedStore] = []

    def __call__(self, member: str = "cp-1", port: int = 0, lease: int = 8_000, **more: Any) -> SharedStore:
        self.opened.append(opened(self.scheme, self.prefix, member, port, lease=lease, **more))
        return self.opened[-1]

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        async def bounded() -> None:
            try:
                async with asyncio.timeout(120):
                    await work()
            finally:
                for store in self.opened:
                    await store.close()

        asyncio.run(bounded())


@pytest.fixture(params=STORES)
def opener(request: pytest.FixtureRequest) -> Opener:
    return Opener(request.param)


@pytest.fixture(params=STORES)
def own_server(request: pytest.FixtureRequest) -> Iterator[tuple[Opener, AnyServer]]:
    server = STORES[request.param]()
    server.start()
    yield Opener(request.param), server
    server.close()


def _expire(opener: Opener, monkeypatch: pytest.MonkeyPatch, lease: float = 8.0) -> None:
    """Check that the leader's lease lasts at most `lease` seconds, and end it as if they had passed."""
    server = shared_server(opener.scheme)
    if isinstance(server, RedisServer):
        key = f"{{{opener.prefix}}}:leader"
        assert 0 < int(server.call("PTTL", key)[1:]) <= lease * 1000
        server.call("PEXPIRE", key, "1")
    elif isinstance(server, EtcdServer):
        (row,) = server.call("kv/range", {"key": base64.b64encode(f"{opener.prefix}/leader".encode()).decode()})["kvs"]
        assert 0 < int(server.call("lease/timetolive", {"ID": row["lease"]})["grantedTTL"]) <= lease
        server.call("lease/revoke", {"ID": row["lease"]})
    else:
        elapsed = kubernetes_lease.elapsed
        monkeypatch.setattr(kubernetes_lease, "elapsed", lambda: elapsed() + lease)


async def _acquired(store: SharedStore) -> int:
    while True:
        try:
            return (await store.acquire()).epoch
        except LeaseHeldError:
            await asyncio.sleep(0.05)


def test_expired_lease_rejects_writes(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        first, second = opener("cp-1"), opener("cp-2")
        first_epoch = (await first.acquire()).epoch
        assert (await first.acquire()).epoch == first_epoch
        with pytest.raises(LeaseHeldError) as held:
            await second.acquire()
        assert held.value.holder == "cp-1" == await second.leader()
        await first.put("key", "1", ABSENT, first_epoch)
        _expire(opener, monkeypatch)
        second_epoch = await _acquired(second)
        assert second_epoch > first_epoch
        assert await first.leader() == "cp-2"
        for late in (first.put("other", "late", ABSENT, first_epoch), first.renew()):
            with pytest.raises(FencedError):
                await late
        assert [entry.value for entry in await second.read("key")] == ["1"]

    opener.run(work)


def test_lease_of_etcd_is_rounded_up() -> None:
    server = EtcdServer()
    server.start()
    opener = Opener("etcd")

    def lease_api(path: str, body: dict[str, str]) -> Any:
        return requests.post(f"http://127.0.0.1:{server.port}/v3/lease/{path}", json=body, timeout=120).json()

    async def work() -> None:
        await opener(port=server.port, lease=2_400).acquire()
        (lease,) = (await asyncio.to_thread(lease_api, "leases", {}))["leases"]
        assert int((await asyncio.to_thread(lease_api, "timetolive", lease))["grantedTTL"]) >= 2.4

    try:
        opener.run(work)
    finally:
        server.close()


def test_emptied_store_has_no_leader_and_a_new_epoch(
    own_server: tuple[Opener, AnyServer],
) -> None:
    opener, server = own_server

    async def work() -> None:
        store = opener(port=server.port)
        epoch = (await store.acquire()).epoch
        await store.put("key", "1", ABSENT, epoch)
        await asyncio.to_thread(server.empty)
        with pytest.raises(FencedError):
            await store.put("key", "2", ABSENT, epoch)
        with pytest.raises(FencedError):
            await store.renew()
        assert (await store.acquire()).epoch > epoch
        assert await store.read() == ()

    opener.run(work)


@pytest.mark.slow
def test_members_are_listed_until_their_announcement_expires(opener: Opener) -> None:
    async def work() -> None:
        first, second = opener("cp-1"), opener("cp-2")
        await first.announce("cp-1", '{"role": "leader"}', 6)
        await second.announce("cp-2", "no JSON", 20)
        assert [item.member for item in await second.members()] == ["cp-1", "cp-2"]
        assert [item.instance for item in await first.members()] == [first.instance, second.instance]
        assert next(map(presence.read_info, await first.members())).role == "leader"
        while len(await second.members()) > 1:
            await asyncio.sleep(0.05)
        assert [item.member for item in await second.members()] == ["cp-2"]
        assert await first.read() == ()

    opener.run(work)


def _commands(server: RedisServer) -> int:
    """Return the number of commands that the server has run, including those in scripts."""
    return sum(int(count) for count in re.findall(r"calls=(\d+)", server.call("INFO", "commandstats").decode()))


@pytest.mark.slow
def test_listing_members_does_not_scan_other_keys_of_redis() -> None:
    server = RedisServer()
    server.start()
    opener = Opener("redis")

    async def work() -> None:
        names = [f"foreign:{number}" for number in range(100_000)]
        await asyncio.to_thread(server.pipeline, [("SET", name, name) for name in names])
        assert server.call("DBSIZE") == b":100000\r\n"
        first, second = opener("cp-1", server.port), opener("cp-2", server.port)
        await first.announce("cp-1", "{}", 6)
        await second.announce("cp-2", "{}", 20)
        before = _commands(server)
        assert [item.member for item in await first.members()] == ["cp-1", "cp-2"]
        assert _commands(server) - before < 10
        while len(await second.members()) > 1:
            await asyncio.sleep(0.05)
        await second.announce("cp-2", "{}", 3)
        assert server.call("HLEN", f"{{{opener.prefix}}}:announcements") == b":1\r\n", "what has expired is removed"
        while server.call("DBSIZE") != b":100000\r\n":
            await asyncio.sleep(0.05)

    try:
        opener.run(work)
    finally:
        server.close()


@pytest.mark.slow
def test_name_belongs_to_one_process_until_it_is_silent(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "INTERVAL", 0.2)
    monkeypatch.setattr(presence, "TTL", 20.0)

    async def work() -> None:
        first, second = opener("cp-1"), opener("cp-1")
        waits: list[str] = []
        await presence.claim(first, "cp-1", waits.append)
        assert not waits

        gone = asyncio.Event()

        async def announce() -> None:
            for number in itertools.count():
                is_last = gone.is_set()
                await first.announce("cp-1", str(number), 1 if is_last else 6)
                if is_last:
                    return
                await asyncio.sleep(0.2)

        running = asyncio.create_task(announce())
        while not await second.members():
            await asyncio.sleep(0.05)
        with pytest.raises(UnusableError, match=r"cp-1.*control\.member"):
            await presence.claim(second, "cp-1", waits.append)
        gone.set()
        await running
        await presence.claim(second, "cp-1", waits.append)
        assert len(waits) == 2

    opener.run(work)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (KEY, json.dumps({"lbctl": FORMAT + 1}), "later version"),
        (KEY, "something else", "another program"),
        ("overrides", "[]", "did not write"),
    ],
)
def test_keys_of_others_and_later_versions_are_not_touched(opener: Opener, key: str, value: str, message: str) -> None:
    async def work() -> None:
        other, store = opener(lease=20_000), opener("cp-2", lease=20_000)
        await other.put(key, value, ABSENT, (await other.acquire()).epoch)
        await other.release()
        election = Election(store, SavedState(store, pytest.fail), Authority(), 20.0)
        await election.turn()
        assert message in election.problem
        assert election.role == "follower"
        assert await store.leader() == ""
        assert [entry.value for entry in await store.read()] == [value]

    opener.run(work)


def test_own_key_space_is_reused(opener: Opener) -> None:
    async def work() -> None:
        store = opener()
        await check_format(store)
        await write_format(store, (await store.acquire()).epoch, signed=False)
        await check_format(store)

    opener.run(work)


def test_leader_stops_before_its_lease_expires(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        first, second = opener("cp-1"), opener("cp-2")
        now = 100.0
        authority = Authority(lambda: now)
        state = SavedState(first, pytest.fail, authority)
        election = Election(first, state, authority, 2.0)
        await election.turn()
        assert (election.role, authority.acts) == ("leader", True)
        await state.save_drains({("p", "a"): 1.0})
        now += 1.5
        assert authority.acts
        now += 0.2
        assert not authority.acts
        with pytest.raises(LeaseHeldError):
            await second.acquire()
        with pytest.raises(FencedError):
            await state.save_drains({})
        _expire(opener, monkeypatch)
        epoch = await _acquired(second)
        await election.turn()
        assert (election.role, authority.decides) == ("follower", False)
        assert epoch > election.epoch

    opener.run(work)


@pytest.mark.slow
def test_last_leader_decides_but_does_not_act_without_a_store(
    own_server: tuple[Opener, AnyServer],
) -> None:
    opener, server = own_server

    async def work() -> None:
        store = opener(port=server.port)
        now = 100.0
        authority = Authority(lambda: now)
        election = Election(store, SavedState(store, pytest.fail, authority), authority, 2.0)
        await election.turn()
        epoch = election.epoch
        await asyncio.to_thread(server.stop)
        await election.turn()
        assert (election.role, authority.acts) == ("leader", True)
        now += 1.7
        await election.turn()
        assert str(election.role) == "isolated"
        assert (authority.acts, authority.decides) == (False, True)
        assert "is not responding" in election.problem
        await asyncio.to_thread(server.start)
        while str(election.role) != "leader":
            await election.turn()
            await asyncio.sleep(0.05)
        assert election.epoch >= epoch
        assert not election.problem

    opener.run(work)


def test_leader_with_a_rejected_password_is_isolated(tmp_path: Path) -> None:
    server = RedisServer("--requirepass", "the-old-one")
    server.start()
    opener = Opener("redis")
    file = tmp_path / "password"
    file.write_text("the-old-one\n")

    async def work() -> None:
        store = opener(port=server.port, password_file=str(file))
        now = 100.0
        authority = Authority(lambda: now)
        election = Election(store, SavedState(store, pytest.fail, authority), authority, 2.0)
        await election.turn()
        assert election.epoch > 0
        await asyncio.to_thread(server.stop)
        server.command.extend(("--requirepass", "the-new-one"))
        await asyncio.to_thread(server.start)
        await election.turn()
        assert authority.acts
        now += 1.7
        await election.turn()
        assert (str(election.role), authority.decides) == ("isolated", True)
        assert "password" in election.problem
        file.unlink()
        await election.turn()
        assert str(file) in election.problem
        file.write_text("the-new-one\n")
        await election.turn()
        assert (str(election.role), election.problem) == ("leader", "")

    try:
        opener.run(work)
    finally:
        server.close()


@pytest.mark.parametrize(("name", "value"), [("leader", "nonsense"), ("epoch", "nonsense")])
def test_foreign_lease_keys_are_reported(opener: Opener, name: str, value: str) -> None:
    async def work() -> None:
        store = opener(lease=20_000)
        write_foreign(shared_server(opener.scheme), opener.prefix, name, value)
        election = Election(store, SavedState(store, pytest.fail), Authority(), 20.0)
        await election.turn()
        assert election.role == "follower"
        assert "lbctl" in election.problem
        assert opener.prefix.split(":")[1] in election.problem
        if name != "epoch":
            with pytest.raises(UnusableError, match="did not write"):
                await store.leader()

    opener.run(work)


@pytest.mark.parametrize("value", ["nonsense", ""])
def test_foreign_announcement_is_ignored(opener: Opener, value: str) -> None:
    async def work() -> None:
        store = opener(lease=20_000)  # a store is given up on within a part of it
        await store.announce("cp-1", "{}", 20)
        write_foreign(shared_server(opener.scheme), opener.prefix, "member", value)
        assert [item.member for item in await store.members()] == ["cp-1"]

    opener.run(work)


def test_unexpected_error_keeps_the_election_and_the_lease(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        store = opener(lease=20_000)
        authority = Authority()
        election = Election(store, SavedState(store, pytest.fail, authority), authority, 20.0)
        await election.turn()

        async def fail() -> NoReturn:
            raise KeyError("kvs")

        with monkeypatch.context() as patched:
            patched.setattr(store, "renew", fail)
            await election.turn()
        assert authority.acts
        assert "KeyError" in election.problem
        await election.turn()
        assert (election.role, election.problem) == ("leader", "")

    opener.run(work)


def test_member_does_not_join_keys_of_a_later_version(opener: Opener) -> None:
    async def work() -> None:
        other = opener()
        value = json.dumps({"lbctl": FORMAT + 1})
        await other.put(KEY, value, ABSENT, (await other.acquire()).epoch)
        with pytest.raises(UnusableError, match="later version"):
            await join(Shared("cp-2", opener("cp-2"), 2.0, Authority()))

    opener.run(work)


def test_unreachable_server_is_reported_by_address(opener: Opener) -> None:
    async def work() -> None:
        with pytest.raises(StoreUnreachableError, match=r"127\.0\.0\.1:9"):
            await opener(port=9).acquire()

    opener.run(work)


def test_wrong_password_is_reported_but_not_shown(tmp_path: Path) -> None:
    server = RedisServer("--requirepass", "the-right-one")
    server.start()
    opener = Opener("redis")
    (tmp_path / "password").write_text("a-wrong-one\n")

    async def work() -> None:
        with pytest.raises(UnusableError) as error:
            await opener(port=server.port, password_file=str(tmp_path / "password")).acquire()
        assert "password" in str(error.value)
        assert "wrong-one" not in str(error.value)
        (tmp_path / "password").write_text("the-right-one\n")
        await opener(port=server.port, password_file=str(tmp_path / "password")).acquire()
        with pytest.raises(UnusableError):
            await opener(port=server.port).acquire()

    try:
        opener.run(work)
    finally:
        server.close()


@pytest.mark.slow
def test_wrong_tls_settings_are_reported(opener: Opener, tmp_path: Path) -> None:
    async def work() -> None:
        with pytest.raises(StoreError, match=r"127\.0\.0\.1"):
            await opener(lease=2_000, tls=True).acquire()

    opener.run(work)
    if opener.scheme == "kubernetes":  # a kubeconfig contains its certificates
        return
    with pytest.raises(UnusableError, match=r"missing\.pem"):
        open_shared(Store(f"{opener.scheme}s://127.0.0.1:1", ca=str(tmp_path / "missing.pem")), "cp-1")


def test_clock_follows_the_leader_except_for_small_differences() -> None:
    wall = [1000.0]
    clock = FleetClock(lambda: wall[0])
    clock.adjust(1000.2)
    assert clock.now() == 1000.0
    clock.adjust(1300.0)
    assert clock.now() == 1300.0
    wall[0] = 1010.0
    clock.adjust(1310.1)
    assert clock.now() == 1310.0
    clock.adjust(1010.1)
    assert clock.now() == 1010.0

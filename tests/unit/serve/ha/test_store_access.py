"""Access to shared stores: users, certificates, several servers, Sentinel."""

from __future__ import annotations

import asyncio
import base64
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lbctl.ir.proxies import Store
from lbctl.store.interface import ABSENT, FencedError, SharedStore, StoreError, UnusableError
from lbctl.store.open import KINDS, open_shared
from tests.support.processes.certs import Authority
from tests.support.processes.ports import HOST, free_port
from tests.support.stores import EtcdServer, RedisProcess, RedisServer, Sentinel, Server

PREFIX = "test:lbctl"
REDIS = KINDS["redis"].module


@contextmanager
def started(*servers: Server) -> Iterator[None]:
    with ExitStack() as stack:
        for server in servers:
            stack.callback(server.close)
        for server in servers:
            server.start()
        yield


async def use_store(url: str, **more: Any) -> None:
    """Lead, write, read and be announced by a store with these settings. Raises StoreError."""
    store = open_shared(Store(url, PREFIX, lease=20_000, **more), "cp-1")
    try:
        epoch = (await store.acquire()).epoch
        key = secrets.token_hex(4)
        await store.put(key, "1", ABSENT, epoch)
        assert [entry.value for entry in await store.read(key)] == ["1"]
        await store.announce("cp-1", "{}", 20)
        assert [item.member for item in await store.members()] == ["cp-1"]
        await store.usage()
        async for change in store.watch(key):
            assert change.entry is not None
            break
    finally:
        await store.close()


def error_of(url: str, **more: Any) -> str:
    """Return the error of a store with these settings."""
    with pytest.raises(StoreError) as error:
        asyncio.run(use_store(url, **more))
    return str(error.value)


# ── Users ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def password(tmp_path: Path) -> str:
    (tmp_path / "password").write_text("of-lbctl\n")
    return str(tmp_path / "password")


def test_user_of_redis_needs_only_its_keys_and_channel(password: str) -> None:
    rights = "on >of-lbctl ~{test:lbctl}:* &{test:lbctl}:* +@all -@admin -@dangerous"
    server = RedisServer("--user", "lbctl", *rights.split(" "), "--user", "default", "off")
    with started(server):
        url = f"redis://{HOST}:{server.port}"
        asyncio.run(use_store(url, user="lbctl", password_file=password))
        message = error_of(url, user="somebody", password_file=password)
        assert "rejects the password" in message
        assert "of-lbctl" not in message
        assert "password" in error_of(url, password_file=password)


def _etcd_with_users(server: EtcdServer) -> None:
    """Create the users `root` and `lbctl` of etcd; lbctl may access only its own keys."""
    first, last = (base64.b64encode(text.encode()).decode() for text in (f"{PREFIX}/", f"{PREFIX}0"))
    for user in ("root", "lbctl"):
        server.call("auth/user/add", {"name": user, "password": f"of-{user}"})
        server.call("auth/role/add", {"name": user})
        server.call("auth/user/grant", {"user": user, "role": user})
    permission = {"permType": "READWRITE", "key": first, "range_end": last}
    server.call("auth/role/grant", {"name": "lbctl", "perm": permission})
    server.call("auth/enable", {})


@pytest.mark.slow
def test_user_of_etcd_needs_only_its_keys(password: str, tmp_path: Path) -> None:
    server = EtcdServer()
    with started(server):
        _etcd_with_users(server)
        url = f"etcd://{HOST}:{server.port}"
        asyncio.run(use_store(url, user="lbctl", password_file=password))
        (tmp_path / "root").write_text("of-root")
        asyncio.run(use_store(url, password_file=str(tmp_path / "root")))
        for user in ("somebody", None):
            message = error_of(url, user=user, password_file=password)
            assert "authentication failed" in message
            assert "of-lbctl" not in message
        assert "user name is empty" in error_of(url)


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _secure(scheme: str, authority: Authority) -> Server:
    """Return a server with a certificate of the authority that requires one from clients."""
    own = authority.issue("store", [HOST])
    files = [str(own.certificate), str(own.key), str(authority.ca)]
    if scheme == "rediss":
        names = ["--tls-cert-file", "--tls-key-file", "--tls-ca-cert-file"]
        return RedisServer(*(text for pair in zip(names, files, strict=True) for text in pair))
    names = ["--cert-file", "--key-file", "--trusted-ca-file"]
    return EtcdServer("--client-cert-auth", *(text for pair in zip(names, files, strict=True) for text in pair))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["rediss", "etcds"])
def test_store_and_client_verify_each_other_by_tls(scheme: str, tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "a", "authority"), Authority(tmp_path / "o", "other")
    server = _secure(scheme, authority)
    pair, foreign = authority.issue("cp-1"), other.issue("cp-2")
    own = {"certificate": str(pair.certificate), "key": str(pair.key)}
    with started(server):
        url = f"{scheme}://{HOST}:{server.port}"
        asyncio.run(use_store(url, ca=str(authority.ca), **own))
        assert "certificate" in error_of(url, ca=str(other.ca), **own).lower(), "another authority"
        assert "certificate" in error_of(url, **own).lower(), "the system's authorities"
        error_of(url, ca=str(authority.ca))
        error_of(url, ca=str(authority.ca), certificate=str(foreign.certificate), key=str(foreign.key))
        error_of(url.replace("s://", "://"))
        asyncio.run(use_store(url, ca=str(authority.ca), **own))


def test_certificate_for_another_name_is_rejected(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    own = authority.issue("elsewhere.example")
    server = RedisServer(
        *("--tls-cert-file", str(own.certificate), "--tls-key-file", str(own.key)),
        *("--tls-ca-cert-file", str(authority.ca), "--tls-auth-clients", "no"),
    )
    with started(server):
        message = error_of(f"rediss://{HOST}:{server.port}", ca=str(authority.ca))
        assert "certificate verify failed" in message


# ── Several servers ──────────────────────────────────────────────────────────────────────────────────────────────────


async def _keeps_leading(store: SharedStore, epoch: int) -> None:
    """Renew the lease and write until both succeed; fail if the lease is lost."""
    while True:
        try:
            assert (await store.renew()).epoch == epoch
            await store.put(secrets.token_hex(4), "1", ABSENT, epoch)
        except FencedError:
            raise
        except StoreError:
            await asyncio.sleep(0.05)
        else:
            return


def _places(servers: Sequence[Server]) -> str:
    return ",".join(f"{HOST}:{server.port}" for server in servers)


@pytest.mark.slow
def test_leader_keeps_its_lease_if_one_of_three_etcd_ends() -> None:
    peers = {name: free_port() for name in ("a", "b", "c")}
    servers = [EtcdServer(name=name, peers=peers) for name in peers]

    async def work() -> None:
        store = open_shared(Store(f"etcd://{HOST}:{free_port()},{_places(servers)}", PREFIX, lease=20_000), "cp-1")
        try:
            epoch = (await store.acquire()).epoch
            await store.put("before", "1", ABSENT, epoch)
            await asyncio.to_thread(servers[0].stop)
            await _keeps_leading(store, epoch)
            assert [entry.value for entry in await store.read("before")] == ["1"]
            assert all(f":{server.port}" in store.location for server in servers)
        finally:
            await store.close()

    with ExitStack() as stack:
        for server in servers:
            stack.callback(server.close)
            server.launch()
        for server in servers:
            server.wait()
        asyncio.run(asyncio.wait_for(work(), 120))


def test_concurrent_calls_use_the_etcd_server_that_answers() -> None:
    server = EtcdServer()

    async def work() -> None:
        store = open_shared(Store(f"etcd://{HOST}:{free_port()},{HOST}:{server.port}", PREFIX, lease=20_000), "cp-1")
        try:
            assert await asyncio.gather(store.read("a"), store.read("b")) == [(), ()]
        finally:
            await store.close()

    with started(server):
        asyncio.run(asyncio.wait_for(work(), 120))


async def _reports(server: RedisProcess, text: bytes, *command: str) -> None:
    while text not in await asyncio.to_thread(server.call, *command):
        await asyncio.sleep(0.05)


@pytest.mark.slow
def test_sentinel_reports_the_primary_after_a_failover() -> None:
    primary = RedisServer("--repl-diskless-sync-delay", "0")
    replica = RedisServer("--replicaof", HOST, str(primary.port))
    sentinel = Sentinel(primary.port)

    async def work() -> None:
        url = f"redis+sentinel://{HOST}:{free_port()},{HOST}:{sentinel.port}/main/0"
        store = open_shared(Store(url, PREFIX, lease=20_000), "cp-1")
        try:
            epoch = (await store.acquire()).epoch
            await store.put("before", "1", ABSENT, epoch)
            await _reports(replica, b":1\r\n", "HEXISTS", f"{{{PREFIX}}}:values", "before")
            await _reports(sentinel, b"slaves=1", "INFO")
            await asyncio.to_thread(primary.stop)
            await _keeps_leading(store, epoch)
            assert [entry.value for entry in await store.read("before")] == ["1"]
        finally:
            await store.close()

    with started(primary, replica, sentinel):
        asyncio.run(asyncio.wait_for(work(), 120))


# ── The packages ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_missing_package_is_reported_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "redis" or name.startswith(REDIS)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(UnusableError, match=r"redis\+sentinel://.*redis.*pip install 'lbctl\[redis\]'"):
        open_shared(Store("redis+sentinel://h/main"), "cp-1")

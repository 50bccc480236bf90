"""Who is sent resources that hold secrets: clients of the Unix socket and of mTLS, and nobody else."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from pathlib import Path

import grpc
import pytest
from envoy.extensions.transport_sockets.tls.v3.secret_pb2 import Secret

from lbctl.ir.address import Address
from lbctl.xds.protocol.private_socket import BindError
from lbctl.xds.resource import CDS, LDS, RDS, SDS, Resource
from tests.support.xds import CachedSnapshot, cluster, connected, route, running, until

BOTH = pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
KEY = b"s3cret-key"


def secret(name: str = "pair") -> Resource:
    message = Secret(name=name, tls_certificate={"private_key": {"inline_bytes": KEY}})
    return Resource(SDS, name, message.SerializeToString(), secret=True)


def keyed_route(name: str = "gateway") -> Resource:
    return Resource(RDS, name, route(name, "s3cret").body, secret=True)


@BOTH
@pytest.mark.parametrize("only", [None, CDS, LDS, RDS, SDS])
def test_over_open_tcp_a_node_with_secrets_is_sent_nothing_of_any_type(delta: bool, only: str | None) -> None:
    async def talk() -> None:
        async with running() as it, connected(it.port, delta=delta, only=only) as client:
            it.publish(CachedSnapshot("e1", cluster("a"), secret()))
            await client.ask(only or CDS, *(["pair"] if only == SDS else []))
            assert await client.status() == grpc.StatusCode.PERMISSION_DENIED
            assert "LB527" in await client.call.details()
            assert it.seen.pushes == []

    asyncio.run(talk())


@BOTH
def test_by_the_socket_it_is_sent_everything(delta: bool, tmp_path: Path) -> None:
    async def talk() -> None:
        path = tmp_path / "xds.sock"
        async with running(socket=path) as it, connected(f"unix:{path}", delta=delta) as client:
            it.publish(CachedSnapshot("e1", cluster("a"), secret(), keyed_route()))
            assert await client.fetch(CDS) == ["a"]
            await client.ask(SDS, "pair")
            assert KEY in (await client.read()).SerializeToString()
            assert it.row("edge-1")["peer"] == str(path)

    asyncio.run(talk())


def test_that_is_shown_for_a_minute_with_the_way_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def talk() -> None:
        path = tmp_path / "xds.sock"
        async with running(socket=path) as it:
            it.publish(CachedSnapshot("e1", keyed_route()))
            for _ in range(3):
                async with connected(it.port) as client:
                    await client.ask(CDS)
                    assert await client.status() == grpc.StatusCode.PERMISSION_DENIED
            await until(lambda: it.row("edge-1")["state"] == "REFUSED")
            assert f"unix:{path}" in it.row("edge-1")["reason"]
        assert [item.message for item in caplog.records if "gets nothing" in item.message] != []
        assert len([item for item in caplog.records if "gets nothing" in item.message]) == 1

    asyncio.run(talk())


def test_what_a_node_was_sent_by_the_socket_is_not_held_for_one_of_its_name_on_tcp(tmp_path: Path) -> None:
    """A resource that goes is held for a node's next stream, so that nothing in use is taken away."""

    async def talk() -> None:
        path = tmp_path / "xds.sock"
        async with running(socket=path, settle=5.0) as it:
            it.publish(CachedSnapshot("e1", cluster("a"), keyed_route(), secret()))
            async with connected(f"unix:{path}", delta=False) as owner:
                assert await owner.fetch(CDS) == ["a"]
                assert await owner.fetch(RDS, "gateway") == ["gateway"]
                await owner.ask(SDS, "pair")
                await owner.ack(await owner.read(), "pair")
                it.publish(CachedSnapshot("e2", cluster("a")))
                async with connected(it.port, delta=False) as thief:
                    assert await thief.fetch(CDS) == ["a"]
                    await thief.ask(RDS, "gateway")
                    await thief.ask(SDS, "pair")
                    assert await thief.silent()

    asyncio.run(talk())


def test_a_stream_on_tcp_ends_when_secrets_come_and_keeps_what_it_had() -> None:
    async def talk() -> None:
        async with running() as it, connected(it.port) as client:
            it.publish(CachedSnapshot("e1", cluster("a")))
            assert await client.fetch(CDS) == ["a"]
            it.publish(CachedSnapshot("e2", cluster("b"), secret()))
            assert await client.status() == grpc.StatusCode.PERMISSION_DENIED
            assert len(it.seen.pushes) == 1

    asyncio.run(talk())


def test_secrets_go_over_tcp_where_that_was_asked_for() -> None:
    async def talk() -> None:
        async with running(secrets_in_clear=True) as it, connected(it.port) as client:
            it.publish(CachedSnapshot("e1", secret()))
            await client.ask(SDS, "pair")
            assert KEY in (await client.read()).SerializeToString()

    asyncio.run(talk())


@pytest.mark.parametrize("configured", [False, True])
def test_the_socket_is_for_its_owner_alone_whatever_the_umask(configured: bool, tmp_path: Path) -> None:
    async def talk() -> None:
        path = tmp_path / "xds.sock"
        options = {"bind": Address(path=str(path))} if configured else {"socket": path}
        before = os.umask(0)
        try:
            async with running(**options):
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
                assert [item.name for item in tmp_path.iterdir()] == ["xds.sock"]
        finally:
            os.umask(before)
        assert list(tmp_path.iterdir()) == []

    asyncio.run(talk())


def test_a_socket_that_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    async def talk() -> None:
        path = tmp_path / "xds.sock"
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
        async with running(socket=path) as it, connected(f"unix:{path}") as client:
            it.publish(CachedSnapshot("e1", cluster("a")))
            assert await client.fetch(CDS) == ["a"]

    asyncio.run(talk())


def test_one_that_somebody_listens_on_and_a_file_stay(tmp_path: Path) -> None:
    async def talk() -> None:
        path, file = tmp_path / "xds.sock", tmp_path / "file"
        file.write_text("mine")
        async with running(bind=Address(path=str(path))) as it, connected(f"unix:{path}") as client:
            with pytest.raises(BindError, match="another process"):
                async with running(bind=Address(path=str(path))):
                    pass
            with pytest.raises(BindError, match="no socket"):
                async with running(bind=Address(path=str(file))):
                    pass
            it.publish(CachedSnapshot("e1", cluster("a")))
            assert await client.fetch(CDS) == ["a"]
        assert file.read_text() == "mine"

    asyncio.run(talk())


@pytest.mark.parametrize(("name", "reason"), [("d" * 120, "at most 107 bytes"), ("caf\udce9", "paths that are UTF-8")])
def test_a_path_that_no_socket_can_have_is_said(tmp_path: Path, name: str, reason: str) -> None:
    async def talk() -> None:
        directory = tmp_path / name
        directory.mkdir()
        with pytest.raises(BindError, match=reason):
            async with running(bind=Address(path=str(directory / "xds.sock"))):
                pass
        async with running(socket=directory / "xds.sock") as it, connected(it.port) as client:
            assert reason in it.server.socket_problem
            it.publish(CachedSnapshot("e1", cluster("a")))
            assert await client.fetch(CDS) == ["a"]

    asyncio.run(talk())

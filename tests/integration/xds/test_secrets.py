"""Resources with secrets are sent only to clients of the Unix socket and of mTLS."""

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
def test_a_node_with_secrets_gets_nothing_over_open_tcp(delta: bool, only: str | None) -> None:
    async def scenario() -> None:
        async with running() as xds, connected(xds.port, delta=delta, only=only) as client:
            xds.publish(CachedSnapshot("e1", cluster("a"), secret()))
            await client.ask(only or CDS, *(["pair"] if only == SDS else []))
            assert await client.status() == grpc.StatusCode.PERMISSION_DENIED
            assert "LB527" in await client.call.details()
            assert xds.observer.pushes == []

    asyncio.run(scenario())


@BOTH
def test_a_node_with_secrets_gets_everything_by_the_socket(delta: bool, tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "xds.sock"
        async with running(socket=path) as xds, connected(f"unix:{path}", delta=delta) as client:
            xds.publish(CachedSnapshot("e1", cluster("a"), secret(), keyed_route()))
            assert await client.fetch(CDS) == ["a"]
            await client.ask(SDS, "pair")
            assert KEY in (await client.read()).SerializeToString()
            assert xds.row("edge-1").peer == str(path)

    asyncio.run(scenario())


def test_a_refused_node_is_logged_once_with_the_remedy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        path = tmp_path / "xds.sock"
        async with running(socket=path) as xds:
            xds.publish(CachedSnapshot("e1", keyed_route()))
            for _ in range(3):
                async with connected(xds.port) as client:
                    await client.ask(CDS)
                    assert await client.status() == grpc.StatusCode.PERMISSION_DENIED
            await until(lambda: xds.row("edge-1").state == "REFUSED")
            assert f"unix:{path}" in xds.row("edge-1").reason
        assert [item.message for item in caplog.records if "update withheld" in item.message] != []
        assert len([item for item in caplog.records if "update withheld" in item.message]) == 1

    asyncio.run(scenario())


def test_kept_secrets_do_not_leak_to_tcp_clients(tmp_path: Path) -> None:
    """A removed resource is kept for the next stream of its node, so that resources in use are not removed."""

    async def scenario() -> None:
        path = tmp_path / "xds.sock"
        async with running(socket=path, settle=5.0) as xds:
            xds.publish(CachedSnapshot("e1", cluster("a"), keyed_route(), secret()))
            async with connected(f"unix:{path}", delta=False) as owner:
                assert await owner.fetch(CDS) == ["a"]
                assert await owner.fetch(RDS, "gateway") == ["gateway"]
                await owner.ask(SDS, "pair")
                await owner.ack(await owner.read(), "pair")
                xds.publish(CachedSnapshot("e2", cluster("a")))
                async with connected(xds.port, delta=False) as thief:
                    assert await thief.fetch(CDS) == ["a"]
                    await thief.ask(RDS, "gateway")
                    await thief.ask(SDS, "pair")
                    assert await thief.silent()

    asyncio.run(scenario())


def test_a_tcp_stream_ends_when_secrets_are_added() -> None:
    async def scenario() -> None:
        async with running() as xds, connected(xds.port) as client:
            xds.publish(CachedSnapshot("e1", cluster("a")))
            assert await client.fetch(CDS) == ["a"]
            xds.publish(CachedSnapshot("e2", cluster("b"), secret()))
            assert await client.status() == grpc.StatusCode.PERMISSION_DENIED
            assert len(xds.observer.pushes) == 1

    asyncio.run(scenario())


def test_secrets_in_clear_allows_tcp() -> None:
    async def scenario() -> None:
        async with running(secrets_in_clear=True) as xds, connected(xds.port) as client:
            xds.publish(CachedSnapshot("e1", secret()))
            await client.ask(SDS, "pair")
            assert KEY in (await client.read()).SerializeToString()

    asyncio.run(scenario())


@pytest.mark.parametrize("configured", [False, True])
def test_only_the_owner_may_use_the_socket(configured: bool, tmp_path: Path) -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "xds.sock"
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
        async with running(socket=path) as xds, connected(f"unix:{path}") as client:
            xds.publish(CachedSnapshot("e1", cluster("a")))
            assert await client.fetch(CDS) == ["a"]

    asyncio.run(scenario())


def test_a_socket_in_use_and_a_file_are_not_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        path, file = tmp_path / "xds.sock", tmp_path / "file"
        file.write_text("mine")
        async with running(bind=Address(path=str(path))) as xds, connected(f"unix:{path}") as client:
            with pytest.raises(BindError, match="another process"):
                async with running(bind=Address(path=str(path))):
                    pass
            with pytest.raises(BindError, match="not a socket"):
                async with running(bind=Address(path=str(file))):
                    pass
            xds.publish(CachedSnapshot("e1", cluster("a")))
            assert await client.fetch(CDS) == ["a"]
        assert file.read_text() == "mine"

    asyncio.run(scenario())


@pytest.mark.parametrize(("name", "reason"), [("d" * 120, "at most 107 bytes"), ("caf\udce9", "only UTF-8 paths")])
def test_an_impossible_socket_path_is_reported(tmp_path: Path, name: str, reason: str) -> None:
    async def scenario() -> None:
        directory = tmp_path / name
        directory.mkdir()
        with pytest.raises(BindError, match=reason):
            async with running(bind=Address(path=str(directory / "xds.sock"))):
                pass
        async with running(socket=directory / "xds.sock") as xds, connected(xds.port) as client:
            assert reason in xds.server.socket_problem
            xds.publish(CachedSnapshot("e1", cluster("a")))
            assert await client.fetch(CDS) == ["a"]

    asyncio.run(scenario())

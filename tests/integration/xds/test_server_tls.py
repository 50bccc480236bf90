"""TLS and mTLS on the xDS port: accepted clients, nodes bound to certificates, and rotation without a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from lbctl.ir.proxies import Proxy, ServerTls
from lbctl.xds.protocol.credentials import CredentialsError
from lbctl.xds.protocol.server import Limits
from lbctl.xds.resource import CDS
from tests.support.processes.certs import Authority, Pair
from tests.support.xds import CachedSnapshot, Client, channel, cluster, connected, running, until

SAN = "spiffe://example.com/edge-1"
BOUND = Proxy("edge", "envoy", (1, 40), nodes=("edge-*",), node_san="spiffe://example.com/edge-*")


class CertificateFiles:
    """A server's certificate, key and client CA, and the authorities that issued them."""

    def __init__(self, directory: Path) -> None:
        self.servers = Authority(directory / "servers")
        self.clients = Authority(directory / "clients")
        self.directory = directory
        self.certificate, self.key, self.ca = (directory / name for name in ("xds.crt", "xds.key", "ca.crt"))
        self.ca.write_bytes(self.clients.ca.read_bytes())
        self.install(self.servers)

    def install(self, authority: Authority) -> None:
        """Replace certificate and key, one after the other, like a rotation."""
        pair = authority.issue("control", ["localhost"])
        for source, target in ((pair.certificate, self.certificate), (pair.key, self.key)):
            new = target.with_suffix(".new")
            new.write_bytes(source.read_bytes())
            new.replace(target)

    def tls(self, mutual: bool = True) -> ServerTls:
        return ServerTls(str(self.certificate), str(self.key), str(self.ca) if mutual else None)


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return CertificateFiles(tmp_path)


def trusting(authority: Authority, pair: Pair | None = None) -> dict[str, Any]:
    mine = (pair.key.read_bytes(), pair.certificate.read_bytes()) if pair else (None, None)
    credentials = grpc.ssl_channel_credentials(authority.ca.read_bytes(), *mine)
    return {"credentials": credentials, "options": (("grpc.ssl_target_name_override", "localhost"),)}


async def is_refused(client: Client) -> bool:
    """Return whether the handshake fails; nothing else makes a new connection UNAVAILABLE."""
    try:
        await client.ask(CDS)
    except grpc.aio.AioRpcError:
        pass
    except asyncio.InvalidStateError:
        pass
    return await client.status() == grpc.StatusCode.UNAVAILABLE


def test_tls_rejects_untrusting_and_plaintext_clients(files: CertificateFiles) -> None:
    async def scenario() -> None:
        async with running(tls=files.tls(mutual=False), limits=Limits(handshake=5)) as xds:
            xds.publish(CachedSnapshot("e1", cluster("a")))
            async with connected(xds.port, **trusting(files.servers)) as client:
                assert await client.fetch(CDS) == ["a"]
            async with connected(xds.port, **trusting(files.clients)) as stranger:
                assert await is_refused(stranger)
            async with connected(xds.port) as plain:
                assert await is_refused(plain)

    asyncio.run(scenario())


def test_mutual_tls_rejects_clients_without_a_certificate(files: CertificateFiles) -> None:
    async def scenario() -> None:
        async with running(tls=files.tls()) as xds:
            xds.publish(CachedSnapshot("e1", cluster("a")))
            async with connected(xds.port, **trusting(files.servers, files.clients.issue("edge-1"))) as client:
                assert await client.fetch(CDS) == ["a"]
            async with connected(xds.port, **trusting(files.servers)) as nameless:
                assert await is_refused(nameless)
            async with connected(xds.port, **trusting(files.servers, files.servers.issue("edge-1"))) as forged:
                assert await is_refused(forged)

    asyncio.run(scenario())


def test_a_node_is_bound_to_its_certificate(files: CertificateFiles) -> None:
    async def scenario() -> None:
        async with running(tls=files.tls()) as xds:
            xds.publish(CachedSnapshot("e1", cluster("a"), proxies=(BOUND,)))
            mine = trusting(files.servers, files.clients.issue("mine", [SAN, "edge-1.example.com"]))
            async with connected(xds.port, "edge-1", **mine) as client:
                assert await client.fetch(CDS) == ["a"]
            other = trusting(files.servers, files.clients.issue("other", ["spiffe://example.com/core-1"]))
            async with connected(xds.port, "edge-2", **other) as liar:
                await liar.ask(CDS)
                assert await liar.status() == grpc.StatusCode.PERMISSION_DENIED
                words = await liar.call.details()
                assert "spiffe://example.com/edge-*" in words
            await until(lambda: xds.row("edge-2").state == "REFUSED" and xds.row("edge-2").reason)
            assert xds.row("edge-2").proxy is None
            assert xds.observer.unmatched_ids == ["edge-2"]

    asyncio.run(scenario())


def test_a_node_bound_to_a_certificate_needs_tls() -> None:
    async def scenario() -> None:
        async with running() as xds, connected(xds.port, "edge-1") as client:
            xds.publish(CachedSnapshot("e1", cluster("a"), proxies=(BOUND,)))
            await client.ask(CDS)
            assert await client.status() == grpc.StatusCode.PERMISSION_DENIED

    asyncio.run(scenario())


def test_a_tightened_binding_ends_the_wrong_stream(files: CertificateFiles) -> None:
    async def scenario() -> None:
        async with running(tls=files.tls()) as xds:
            loose = Proxy("edge", "envoy", (1, 40), nodes=("edge-*",))
            xds.publish(CachedSnapshot("e1", cluster("a"), proxies=(loose,)))
            other = trusting(files.servers, files.clients.issue("other", ["spiffe://example.com/core-1"]))
            async with connected(xds.port, "edge-2", **other) as liar:
                assert await liar.fetch(CDS) == ["a"]
                xds.publish(CachedSnapshot("e2", cluster("b"), proxies=(BOUND,)))
                assert await liar.status() == grpc.StatusCode.PERMISSION_DENIED

    asyncio.run(scenario())


def test_streams_ended_during_a_write_have_a_status(files: CertificateFiles) -> None:
    async def scenario() -> None:
        async with running(tls=files.tls()) as xds:
            loose = Proxy("edge", "envoy", (1, 40), nodes=("edge-*",))
            other = trusting(files.servers, files.clients.issue("other", ["spiffe://example.com/core-1"]))
            wire = channel(xds.port, **other)
            liars = [Client(wire, f"edge-{number}", delta=True, only=None) for number in range(20)]
            for liar in liars:
                await liar.ask(CDS)
            await until(lambda: len(xds.rows()) == 20)
            xds.publish(CachedSnapshot("e1", cluster("a"), proxies=(loose,)))
            xds.publish(CachedSnapshot("e2", cluster("b"), proxies=(BOUND,)))
            assert {await liar.status() for liar in liars} == {grpc.StatusCode.PERMISSION_DENIED}
            await wire.close()

    asyncio.run(scenario())


def test_a_rotated_certificate_is_used_without_dropping_streams(files: CertificateFiles) -> None:
    async def scenario() -> None:
        async with running(tls=files.tls(mutual=False), limits=Limits(first_messages=20)) as xds:
            xds.publish(CachedSnapshot("e1", cluster("a")))
            wire = channel(xds.port, **trusting(files.servers))
            old = [Client(wire, f"old-{number}", delta=True, only=None) for number in range(20)]
            for client in old:
                assert await client.fetch(CDS) == ["a"]
            successor = Authority(files.directory / "successor")
            files.install(successor)
            async with connected(xds.port, "new", **trusting(successor)) as new:
                assert await new.fetch(CDS) == ["a"]
            async with connected(xds.port, "late", **trusting(files.servers)) as late:
                assert await is_refused(late)
            xds.publish(CachedSnapshot("e2", cluster("b")))
            assert [await client.take() for client in old] == [["b"]] * 20
            await wire.close()

    asyncio.run(scenario())


def test_a_rotated_client_ca_decides_about_new_clients(files: CertificateFiles) -> None:
    async def scenario() -> None:
        async with running(tls=files.tls()) as xds:
            xds.publish(CachedSnapshot("e1", cluster("a")))
            successor = Authority(files.directory / "successor")
            files.ca.write_bytes(successor.ca.read_bytes())
            async with connected(xds.port, **trusting(files.servers, successor.issue("edge-1"))) as client:
                assert await client.fetch(CDS) == ["a"]
            async with connected(xds.port, **trusting(files.servers, files.clients.issue("edge-1"))) as late:
                assert await is_refused(late)

    asyncio.run(scenario())


@pytest.mark.parametrize("fault", ["half", "mismatched", "missing", "empty"])
def test_a_bad_certificate_is_reported_and_the_old_one_stays(files: CertificateFiles, fault: str) -> None:
    async def scenario() -> None:
        async with running(tls=files.tls(mutual=False)) as xds:
            xds.publish(CachedSnapshot("e1", cluster("a")))
            whole = files.certificate.read_bytes()
            if fault == "half":
                files.certificate.write_bytes(whole[: len(whole) // 2])
            elif fault == "mismatched":
                files.certificate.write_bytes(files.servers.issue("stranger").certificate.read_bytes())
            elif fault == "missing":
                files.key.unlink()
            else:
                files.key.write_bytes(b"")
            async with connected(xds.port, **trusting(files.servers)) as client:
                assert await client.fetch(CDS) == ["a"]
            words = xds.server.check_certificate()
            assert str(files.key) in words
            assert "PRIVATE" not in words
            successor = Authority(files.directory / "successor")
            files.install(successor)
            assert xds.server.check_certificate() == ""
            async with connected(xds.port, **trusting(successor)) as client:
                assert await client.fetch(CDS) == ["a"], "also if the files were read before"

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["certificate", "key", "ca"])
def test_a_server_does_not_start_with_a_bad_certificate(files: CertificateFiles, name: str) -> None:
    async def scenario() -> None:
        getattr(files, name).write_text("nonsense\n")
        with pytest.raises(CredentialsError, match=str(getattr(files, name))):
            async with running(tls=files.tls()):
                pass

    asyncio.run(scenario())

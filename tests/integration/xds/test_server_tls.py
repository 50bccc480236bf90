"""TLS and mTLS on the xDS port: who is let in, what a certificate binds, and rotation without a restart."""

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


class Place:
    """A directory with a server's certificate in use, and the authorities that signed it and the clients'."""

    def __init__(self, directory: Path) -> None:
        self.servers = Authority(directory / "servers")
        self.clients = Authority(directory / "clients")
        self.directory = directory
        self.certificate, self.key, self.ca = (directory / name for name in ("xds.crt", "xds.key", "ca.crt"))
        self.ca.write_bytes(self.clients.ca.read_bytes())
        self.install(self.servers)

    def install(self, authority: Authority) -> None:
        """As a rotation does it: both files replaced, one after the other."""
        pair = authority.issue("control", ["localhost"])
        for source, target in ((pair.certificate, self.certificate), (pair.key, self.key)):
            beside = target.with_suffix(".new")
            beside.write_bytes(source.read_bytes())
            beside.replace(target)

    def tls(self, mutual: bool = True) -> ServerTls:
        return ServerTls(str(self.certificate), str(self.key), str(self.ca) if mutual else None)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def trusting(authority: Authority, pair: Pair | None = None) -> dict[str, Any]:
    mine = (pair.key.read_bytes(), pair.certificate.read_bytes()) if pair else (None, None)
    credentials = grpc.ssl_channel_credentials(authority.ca.read_bytes(), *mine)
    return {"credentials": credentials, "options": (("grpc.ssl_target_name_override", "localhost"),)}


async def refused(client: Client) -> bool:
    """Whether the handshake fails: nothing else makes a fresh connection UNAVAILABLE."""
    try:
        await client.ask(CDS)
    except grpc.aio.AioRpcError:
        pass
    except asyncio.InvalidStateError:
        pass
    return await client.status() == grpc.StatusCode.UNAVAILABLE


def test_tls_serves_those_who_trust_it_and_no_plain_text(place: Place) -> None:
    async def talk() -> None:
        async with running(tls=place.tls(mutual=False), limits=Limits(handshake=0.5)) as it:
            it.publish(CachedSnapshot("e1", cluster("a")))
            async with connected(it.port, **trusting(place.servers)) as client:
                assert await client.fetch(CDS) == ["a"]
            async with connected(it.port, **trusting(place.clients)) as stranger:
                assert await refused(stranger)
            async with connected(it.port) as plain:
                assert await refused(plain)

    asyncio.run(talk())


def test_with_a_client_ca_nobody_comes_in_without_a_certificate_of_it(place: Place) -> None:
    async def talk() -> None:
        async with running(tls=place.tls()) as it:
            it.publish(CachedSnapshot("e1", cluster("a")))
            async with connected(it.port, **trusting(place.servers, place.clients.issue("edge-1"))) as client:
                assert await client.fetch(CDS) == ["a"]
            async with connected(it.port, **trusting(place.servers)) as nameless:
                assert await refused(nameless)
            async with connected(it.port, **trusting(place.servers, place.servers.issue("edge-1"))) as forged:
                assert await refused(forged)

    asyncio.run(talk())


def test_a_node_is_bound_to_what_its_certificate_says(place: Place) -> None:
    async def talk() -> None:
        async with running(tls=place.tls()) as it:
            it.publish(CachedSnapshot("e1", cluster("a"), proxies=(BOUND,)))
            mine = trusting(place.servers, place.clients.issue("mine", [SAN, "edge-1.example.com"]))
            async with connected(it.port, "edge-1", **mine) as client:
                assert await client.fetch(CDS) == ["a"]
            other = trusting(place.servers, place.clients.issue("other", ["spiffe://example.com/core-1"]))
            async with connected(it.port, "edge-2", **other) as liar:
                await liar.ask(CDS)
                assert await liar.status() == grpc.StatusCode.PERMISSION_DENIED
                words = await liar.call.details()
                assert "spiffe://example.com/edge-*" in words
            await until(lambda: it.row("edge-2")["state"] == "REFUSED" and it.row("edge-2")["reason"])
            assert it.row("edge-2")["proxy"] is None
            assert it.seen.strays == ["edge-2"]

    asyncio.run(talk())


def test_without_tls_a_node_that_must_prove_itself_gets_nothing() -> None:
    async def talk() -> None:
        async with running() as it, connected(it.port, "edge-1") as client:
            it.publish(CachedSnapshot("e1", cluster("a"), proxies=(BOUND,)))
            await client.ask(CDS)
            assert await client.status() == grpc.StatusCode.PERMISSION_DENIED

    asyncio.run(talk())


def test_a_binding_that_is_tightened_ends_the_stream_of_the_wrong_one(place: Place) -> None:
    async def talk() -> None:
        async with running(tls=place.tls()) as it:
            loose = Proxy("edge", "envoy", (1, 40), nodes=("edge-*",))
            it.publish(CachedSnapshot("e1", cluster("a"), proxies=(loose,)))
            other = trusting(place.servers, place.clients.issue("other", ["spiffe://example.com/core-1"]))
            async with connected(it.port, "edge-2", **other) as liar:
                assert await liar.fetch(CDS) == ["a"]
                it.publish(CachedSnapshot("e2", cluster("b"), proxies=(BOUND,)))
                assert await liar.status() == grpc.StatusCode.PERMISSION_DENIED

    asyncio.run(talk())


def test_streams_that_are_ended_while_they_are_written_to_have_their_status_all_the_same(place: Place) -> None:
    async def talk() -> None:
        async with running(tls=place.tls()) as it:
            loose = Proxy("edge", "envoy", (1, 40), nodes=("edge-*",))
            other = trusting(place.servers, place.clients.issue("other", ["spiffe://example.com/core-1"]))
            wire = channel(it.port, **other)
            liars = [Client(wire, f"edge-{number}", delta=True, only=None) for number in range(20)]
            for liar in liars:
                await liar.ask(CDS)
            await until(lambda: len(it.rows()) == 20)
            it.publish(CachedSnapshot("e1", cluster("a"), proxies=(loose,)))
            it.publish(CachedSnapshot("e2", cluster("b"), proxies=(BOUND,)))
            assert {await liar.status() for liar in liars} == {grpc.StatusCode.PERMISSION_DENIED}
            await wire.close()

    asyncio.run(talk())


def test_a_rotated_certificate_is_used_at_once_and_drops_no_stream(place: Place) -> None:
    async def talk() -> None:
        async with running(tls=place.tls(mutual=False)) as it:
            it.publish(CachedSnapshot("e1", cluster("a")))
            wire = channel(it.port, **trusting(place.servers))
            old = [Client(wire, f"old-{number}", delta=True, only=None) for number in range(20)]
            for client in old:
                assert await client.fetch(CDS) == ["a"]
            successor = Authority(place.directory / "successor")
            place.install(successor)
            async with connected(it.port, "new", **trusting(successor)) as new:
                assert await new.fetch(CDS) == ["a"]
            async with connected(it.port, "late", **trusting(place.servers)) as late:
                assert await refused(late)
            it.publish(CachedSnapshot("e2", cluster("b")))
            assert [await client.take() for client in old] == [["b"]] * 20
            await wire.close()

    asyncio.run(talk())


def test_rotated_authorities_decide_about_new_clients(place: Place) -> None:
    async def talk() -> None:
        async with running(tls=place.tls()) as it:
            it.publish(CachedSnapshot("e1", cluster("a")))
            successor = Authority(place.directory / "successor")
            place.ca.write_bytes(successor.ca.read_bytes())
            async with connected(it.port, **trusting(place.servers, successor.issue("edge-1"))) as client:
                assert await client.fetch(CDS) == ["a"]
            async with connected(it.port, **trusting(place.servers, place.clients.issue("edge-1"))) as late:
                assert await refused(late)

    asyncio.run(talk())


@pytest.mark.parametrize("fault", ["half", "mismatched", "missing", "empty"])
def test_a_bad_pair_is_said_and_the_old_one_stays(place: Place, fault: str) -> None:
    async def talk() -> None:
        async with running(tls=place.tls(mutual=False)) as it:
            it.publish(CachedSnapshot("e1", cluster("a")))
            whole = place.certificate.read_bytes()
            if fault == "half":
                place.certificate.write_bytes(whole[: len(whole) // 2])
            elif fault == "mismatched":
                place.certificate.write_bytes(place.servers.issue("stranger").certificate.read_bytes())
            elif fault == "missing":
                place.key.unlink()
            else:
                place.key.write_bytes(b"")
            async with connected(it.port, **trusting(place.servers)) as client:
                assert await client.fetch(CDS) == ["a"]
            words = it.server.check_certificate()
            assert str(place.key) in words
            assert "PRIVATE" not in words
            successor = Authority(place.directory / "successor")
            place.install(successor)
            assert it.server.check_certificate() == ""
            async with connected(it.port, **trusting(successor)) as client:
                assert await client.fetch(CDS) == ["a"], "also where somebody else had the files read before"

    asyncio.run(talk())


@pytest.mark.parametrize("name", ["certificate", "key", "ca"])
def test_a_server_without_a_good_pair_does_not_start(place: Place, name: str) -> None:
    async def talk() -> None:
        getattr(place, name).write_text("nonsense\n")
        with pytest.raises(CredentialsError, match=str(getattr(place, name))):
            async with running(tls=place.tls()):
                pass

    asyncio.run(talk())

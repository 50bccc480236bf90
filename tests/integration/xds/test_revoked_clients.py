"""`control.xds.tls.client_crl`: a proxy whose certificate is revoked gets nothing, and its streams end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from lbctl.ir.proxies import ServerTls
from lbctl.xds.protocol.credentials import CredentialsError
from lbctl.xds.resource import CDS
from tests.support.processes.certs import Authority, Pair
from tests.support.xds import CachedSnapshot, Client, cluster, connected, running


class Site:
    """A control plane's certificate, the authority of its proxies with its revocation list, and two proxies."""

    def __init__(self, directory: Path) -> None:
        self.servers, self.clients = Authority(directory / "servers"), Authority(directory / "clients")
        self.own = self.servers.issue("control", ["localhost"])
        self.kept, self.lost = self.clients.issue("edge-1"), self.clients.issue("edge-2")
        self.lists = directory / "clients.crl"
        self.lists.write_bytes(self.clients.revoke())

    @property
    def tls(self) -> ServerTls:
        return ServerTls(str(self.own.certificate), str(self.own.key), str(self.clients.ca), str(self.lists))

    def shown(self, pair: Pair) -> dict[str, Any]:
        files = (self.servers.ca, pair.key, pair.certificate)
        credentials = grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))
        return {"credentials": credentials, "options": (("grpc.ssl_target_name_override", "localhost"),)}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def refusal(client: Client) -> str:
    """Return what a refused client is told, before it has asked for anything."""
    assert await client.status() == grpc.StatusCode.UNAUTHENTICATED
    return str(await client.call.details())


def test_revoked_certificate_is_refused_and_others_are_served(site: Site) -> None:
    async def scenario() -> None:
        site.lists.write_bytes(site.clients.revoke(site.lost))
        async with running(tls=site.tls) as xds:
            xds.publish(CachedSnapshot("e1", cluster("a")))
            async with connected(xds.port, "edge-2", **site.shown(site.lost)) as lost:
                assert "revoked" in await refusal(lost)
            async with connected(xds.port, "edge-1", **site.shown(site.kept)) as kept:
                assert await kept.fetch(CDS) == ["a"]

    asyncio.run(scenario())


def test_revocation_ends_the_open_streams_of_the_client(site: Site) -> None:
    async def scenario() -> None:
        async with running(tls=site.tls) as xds:
            xds.publish(CachedSnapshot("e1", cluster("a")))
            async with (
                connected(xds.port, "edge-1", **site.shown(site.kept)) as kept,
                connected(xds.port, "edge-2", **site.shown(site.lost)) as lost,
            ):
                assert await kept.fetch(CDS) == await lost.fetch(CDS) == ["a"]
                site.lists.write_bytes(site.clients.revoke(site.lost))
                assert xds.server.check_certificate() == ""
                assert await lost.status() == grpc.StatusCode.UNAUTHENTICATED
                xds.publish(CachedSnapshot("e2", cluster("b")))
                assert await kept.take() == ["b"]

    asyncio.run(scenario())


def test_expired_list_refuses_every_client(site: Site) -> None:
    async def scenario() -> None:
        site.lists.write_bytes(site.clients.revoke(expired=True))
        async with running(tls=site.tls) as xds:
            xds.publish(CachedSnapshot("e1", cluster("a")))
            async with connected(xds.port, "edge-1", **site.shown(site.kept)) as kept:
                assert "expired" in await refusal(kept)

    asyncio.run(scenario())


@pytest.mark.parametrize("fault", ["nonsense", "empty", "of another authority"])
def test_bad_list_is_reported_and_the_one_before_stays(site: Site, fault: str) -> None:
    contents = {"nonsense": b"nonsense\n", "empty": b"", "of another authority": site.servers.revoke(site.own)}

    async def scenario() -> None:
        site.lists.write_bytes(site.clients.revoke(site.lost))
        async with running(tls=site.tls) as xds:
            xds.publish(CachedSnapshot("e1", cluster("a")))
            site.lists.write_bytes(contents[fault])
            assert str(site.lists) in xds.server.check_certificate()
            async with connected(xds.port, "edge-2", **site.shown(site.lost)) as lost:
                assert "revoked" in await refusal(lost)
        with pytest.raises(CredentialsError, match=str(site.lists)):
            async with running(tls=site.tls):
                pass

    asyncio.run(scenario())

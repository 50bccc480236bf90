"""A picker that serves HTTP beyond loopback answers only clients with a certificate of its authority."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from lbctl.ir.proxies import ServerTls
from lbctl.picker.http_api import HttpApi
from lbctl.picker.process import connections
from lbctl.picker.service import PickService
from lbctl.runtime.net.http_certificate import HttpCertificate
from tests.support.processes.certs import Authority, Pair
from tests.support.processes.ports import HOST

QUESTION = b"GET /health HTTP/1.1\r\n\r\n"


def _tls(pair: Pair, authority: Authority, lists: Path | None = None) -> ServerTls:
    return ServerTls(str(pair.certificate), str(pair.key), str(authority.ca), lists and str(lists))


async def _answer(port: int, authority: Authority, pair: Pair | None) -> bytes:
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.check_hostname = False
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
    try:
        writer.write(QUESTION)
        return await reader.readline()
    except (ssl.SSLError, ConnectionError):
        return b""
    finally:
        writer.close()


def test_client_needs_a_certificate_and_renewals_are_used(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    own, client = authority.issue("picker", [HOST]), authority.issue("edge")
    certificate = HttpCertificate(_tls(own, authority))
    later = Authority(tmp_path / "later")
    renewed, later_client = later.issue("picker", [HOST]), later.issue("edge")

    async def run() -> None:
        api = HttpApi(PickService(), bytes)
        server = await asyncio.get_running_loop().create_server(connections(api), HOST, 0, ssl=certificate.context)
        async with server, asyncio.timeout(60):
            port = server.sockets[0].getsockname()[1]
            assert await _answer(port, authority, client) == b"HTTP/1.1 200 OK\r\n"
            assert await _answer(port, authority, None) == b""
            for content in (b"nothing", renewed.certificate.read_bytes()):
                own.certificate.write_bytes(content)  # its key is still the one before
                certificate.renew()
                assert await _answer(port, authority, client) == b"HTTP/1.1 200 OK\r\n"
            own.key.write_bytes(renewed.key.read_bytes())
            authority.ca.write_bytes(later.ca.read_bytes())
            certificate.renew()
            assert await _answer(port, later, later_client) == b"HTTP/1.1 200 OK\r\n"
            assert await _answer(port, later, client) == b""

    asyncio.run(run())


def test_revoked_client_is_refused(tmp_path: Path) -> None:
    authority, lists = Authority(tmp_path / "pki"), tmp_path / "revoked.crl"
    own, kept, lost = authority.issue("picker", [HOST]), authority.issue("edge-1"), authority.issue("edge-2")
    lists.write_bytes(authority.revoke(lost))
    certificate = HttpCertificate(_tls(own, authority, lists))

    async def run() -> None:
        api = HttpApi(PickService(), bytes)
        server = await asyncio.get_running_loop().create_server(connections(api), HOST, 0, ssl=certificate.context)
        async with server, asyncio.timeout(60):
            port = server.sockets[0].getsockname()[1]
            assert await _answer(port, authority, kept) == b"HTTP/1.1 200 OK\r\n"
            assert await _answer(port, authority, lost) == b""

    asyncio.run(run())

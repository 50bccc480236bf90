"""The HTTP client of the scraper and of health checks, and the addresses that it refuses to connect to.

A fleet names the pages to fetch, so anyone who can write a fleet or a DNS zone could direct the client to services that
only this machine can reach. Therefore the address of each connection is checked after name resolution: link-local
addresses, and those where clouds offer credentials, are refused. The client uses no cookies, no proxy settings of the
environment and no credentials from files.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from lbctl.serve.net.resolve import UnresolvedError, resolve, usable_answer

if TYPE_CHECKING:
    from aiohttp.connector import AddrInfoType

_RESOLVER_TIMEOUT = 60.0
"""Seconds; longer than any timeout of a request, so that a name is not queried again while its answer is pending."""
_KEEP_ALIVE = 75.0
"""Seconds for which an idle connection is kept open."""
_PROBES = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}
"""Seconds of silence before the first probe and between probes, and the number of probes without an answer."""


class RefusedAddressError(OSError):
    """The client refuses to connect to this address."""


class _Resolver(AbstractResolver):
    """Resolves each name in a thread of its own, so that a slow name does not delay the others."""

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_UNSPEC,  # noqa: ARG002 - aiohttp's signature; `resolve` chooses
    ) -> list[ResolveResult]:
        try:
            dns_answer = await resolve(host, (), _RESOLVER_TIMEOUT)
        except UnresolvedError as error:
            raise OSError(None, str(error)) from None
        return [_result(host, port, item) for item in dns_answer.addresses]

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""


def _result(host: str, port: int, address: str) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=socket.AI_NUMERICHOST)


def _socket(info: AddrInfoType) -> socket.socket:
    """Create the socket of a connection. Raises RefusedAddressError for an address that no replica can have."""
    family, kind, protocol, _, address = info
    try:
        usable_answer([str(ipaddress.ip_address(str(address[0]).partition("%")[0]))])
    except (UnresolvedError, ValueError):
        raise RefusedAddressError(None, f"{address[0]} is an address that no replica can have") from None
    return socket.socket(family, kind, protocol)


def _probed_socket(info: AddrInfoType) -> socket.socket:
    """Create a socket whose peer is probed while it is silent, so that a machine that is gone is noticed."""
    created = _socket(info)
    created.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _PROBES.items():
        created.setsockopt(socket.IPPROTO_TCP, option, value)
    return created


def session(*, keep_alive_probes: bool = False) -> aiohttp.ClientSession:
    """Return a session for all requests of one event loop, which must be running. Each request sets its own timeout.

    `keep_alive_probes`: whether TCP probes the peers of silent connections, for answers that last long.
    """
    factory = _probed_socket if keep_alive_probes else _socket
    connector = aiohttp.TCPConnector(
        limit=0, resolver=_Resolver(), ttl_dns_cache=30, keepalive_timeout=_KEEP_ALIVE, socket_factory=factory
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
        headers={"Accept": "text/plain;version=0.0.4,*/*;q=0.1", "Accept-Encoding": "identity", "User-Agent": "lbctl"},
    )

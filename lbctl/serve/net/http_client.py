"""The HTTP client of the scraper, and whom it does not talk to.

Pages are of replicas that a fleet names, so whoever may write a fleet or a DNS zone could point the scraper at what
only this machine can reach. The address that is really connected to is judged, after every resolution: link-local ones,
and those where clouds answer with credentials, are refused. No cookies, no proxy variables, no credentials from files.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from lbctl.serve.net.resolve import UnresolvedError, answer, resolve

if TYPE_CHECKING:
    from aiohttp.connector import AddrInfoType

_RESOLVER_PATIENCE = 60.0
"""Seconds. Above any time-out: while the system has no answer nobody asks again for the same name."""
_KEEP_ALIVE = 75.0


class RefusedAddressError(OSError):
    """Nobody connects there."""


class _Resolver(AbstractResolver):
    """The system's, with a thread for each name: a name that hangs keeps nobody else waiting."""

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_UNSPEC,  # noqa: ARG002 - aiohttp's signature; `resolve` chooses
    ) -> list[ResolveResult]:
        try:
            found = await resolve(host, (), _RESOLVER_PATIENCE)
        except UnresolvedError as error:
            raise OSError(None, str(error)) from None
        return [_result(host, port, item) for item in found.addresses]

    async def close(self) -> None:
        """Nothing is held."""


def _result(host: str, port: int, address: str) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=socket.AI_NUMERICHOST)


def _socket(info: AddrInfoType) -> socket.socket:
    """Called with the address itself, for names and literal addresses alike."""
    family, kind, protocol, _, address = info
    try:
        answer([str(ipaddress.ip_address(str(address[0]).partition("%")[0]))])
    except (UnresolvedError, ValueError):
        raise RefusedAddressError(None, f"{address[0]} is an address that no replica can have") from None
    return socket.socket(family, kind, protocol)


def session() -> aiohttp.ClientSession:
    """One for all sources; inside a running loop. Each request brings its own time-out."""
    connector = aiohttp.TCPConnector(
        limit=0, resolver=_Resolver(), ttl_dns_cache=30, keepalive_timeout=_KEEP_ALIVE, socket_factory=_socket
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
        headers={"Accept": "text/plain;version=0.0.4,*/*;q=0.1", "Accept-Encoding": "identity", "User-Agent": "lbctl"},
    )

"""The control plane's HTTP client, and the addresses to which it never connects.

A fleet names the pages to fetch, so anyone who can write to a fleet or a DNS zone could direct the client to services
that only this machine can reach. Each connection's address is therefore checked after name resolution: link-local
addresses, and addresses at which clouds serve credentials, are rejected. The client does not use cookies, proxy
settings from the environment, or credentials from files. Peers are not trusted: at most `MAX_HEADERS` headers of
`MAX_HEADER_BYTES` each and `MAX_INTERIM` interim responses are read, and compressed bodies are not decompressed. The
caller limits the body size and the time (`bounded`).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler

from lbctl.runtime.net.resolve import UnresolvedError, resolve, usable_answer

if TYPE_CHECKING:
    from aiohttp.connector import AddrInfoType
    from aiohttp.http import RawResponseMessage

MAX_HEADERS = 128
"""Maximum number of headers in a response."""
MAX_HEADER_BYTES = 8190
"""Maximum length of a header or of the status line, in bytes."""
MAX_INTERIM = 16
"""Maximum number of 1xx responses to one request."""
_HEAD_PIECE = 4096
"""Maximum number of bytes of a response head parsed at once."""
_RESOLVER_TIMEOUT = 60.0
"""Timeout in seconds. It is longer than any request timeout, so that a name is not queried again while its response is
pending."""
_KEEP_ALIVE = 75.0
"""Seconds for which an idle connection is kept open."""
_PROBES = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}
"""Seconds of silence before the first probe, seconds between probes, and maximum number of unanswered probes."""


class RefusedAddressError(OSError):
    """The client does not connect to this address."""


class _Peer(ResponseHandler):
    """A connection that is closed if the server sends only interim responses."""

    _interim = 0
    _awaits_head = True

    def set_response_params(self, **parameters: Any) -> None:
        """Begin the next response."""
        self._interim, self._awaits_head = 0, True
        super().set_response_params(**parameters)

    def data_received(self, data: bytes) -> None:
        """Parse received data.

        A head is parsed in pieces, so that parsing stops soon after the connection is closed.
        """
        start = 0
        while self._awaits_head and self.transport is not None and len(data) - start > _HEAD_PIECE:
            super().data_received(data[start : start + _HEAD_PIECE])
            start += _HEAD_PIECE
        if not start or self.transport is not None:
            super().data_received(data[start:])

    def feed_data(self, data: tuple[RawResponseMessage, aiohttp.StreamReader], size: int = 0) -> None:
        """Receive a head from the parser."""
        self._awaits_head = 100 <= data[0].code < 200
        self._interim += self._awaits_head
        if self._interim <= MAX_INTERIM:
            super().feed_data(data, size)
        elif self.transport is not None:
            self.abort()
            self.set_exception(aiohttp.ClientPayloadError(f"more than {MAX_INTERIM} interim responses"))


def _peer(loop: asyncio.AbstractEventLoop) -> ResponseHandler:
    return _Peer(loop)


class _Resolver(AbstractResolver):
    """Resolves each name in a separate thread, so that one slow name does not delay the others."""

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
        """Do nothing, because there are no resources to release."""


def _result(host: str, port: int, address: str) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=socket.AI_NUMERICHOST)


def _socket(info: AddrInfoType) -> socket.socket:
    """Create a connection's socket. Raises RefusedAddressError for an address that is not valid for a replica."""
    family, kind, protocol, _, address = info
    try:
        usable_answer([str(ipaddress.ip_address(str(address[0]).partition("%")[0]))])
    except (UnresolvedError, ValueError):
        raise RefusedAddressError(None, f"{address[0]} is not a valid replica address") from None
    return socket.socket(family, kind, protocol)


def _probed_socket(info: AddrInfoType) -> socket.socket:
    """Create a socket with TCP keep-alive probes, so that a lost machine is detected."""
    created = _socket(info)
    created.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _PROBES.items():
        created.setsockopt(socket.IPPROTO_TCP, option, value)
    return created


def session(*, keep_alive_probes: bool = False, unix: str = "") -> aiohttp.ClientSession:
    """Return a session for all requests on one event loop, which must be running. Each request sets its own timeout.

    `keep_alive_probes`: whether to send TCP probes on silent connections, for long-running responses. `unix`: path of a
    Unix socket used for all requests.
    """
    factory = _probed_socket if keep_alive_probes else _socket
    connector = aiohttp.UnixConnector(unix) if unix else aiohttp.TCPConnector(
        limit=0, resolver=_Resolver(), ttl_dns_cache=30, keepalive_timeout=_KEEP_ALIVE, socket_factory=factory
    )  # fmt: skip
    connector._factory = partial(_peer, asyncio.get_running_loop())  # aiohttp has no setting for it
    return aiohttp.ClientSession(
        connector=connector,
        max_headers=MAX_HEADERS,
        max_line_size=MAX_HEADER_BYTES,
        max_field_size=MAX_HEADER_BYTES,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
        headers={"Accept": "text/plain;version=0.0.4,*/*;q=0.1", "Accept-Encoding": "identity", "User-Agent": "lbctl"},
    )

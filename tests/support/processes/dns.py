"""A DNS server with configurable A and AAAA records, on a free UDP port. Changes apply immediately.

A query for another type of a known name returns no record, for an unknown name NXDOMAIN. A response is limited to the
size in the query (EDNS), else 512 bytes, and truncated with the flag if it is longer. The server counts the queries.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.processes import background
from tests.support.processes.ports import HOST

_A = 1
_AAAA = 28
_NXDOMAIN = 3
_RESPONSE = 0x8480  # an authoritative response, recursion available
_CUT = 0x0200
_OPT = b"\x00\x00\x29"  # the root's name and the type, 41
_UNSAID = 512
_TTL = 1
_HEADER = 12
_TO_THE_QUESTION = b"\xc0\x0c"  # a pointer to the name in the question


class DnsServer:
    """Listens within `with serving_dns()`; `names` maps a lowercase name to its addresses."""

    def __init__(self, names: dict[str, list[str]]) -> None:
        self.names = names
        self.asked: Counter[str] = Counter()
        self.silent = False
        """Whether it ignores queries."""
        self.port = 0

    @property
    def address(self) -> str:
        """Address for a fleet file: host:port."""
        return f"{HOST}:{self.port}"

    def answer(self, query: bytes) -> bytes:
        """Return the response to one query, truncated if necessary."""
        name, end = _name(query)
        kind = int.from_bytes(query[end : end + 2])
        self.asked[name] += 1
        addresses = self.names.get(name)
        records = [_record(address) for address in addresses or () if kind == (_AAAA if ":" in address else _A)]
        fitting = records[: (_most(query, end + 4) - end - 4) // max(map(len, records), default=1)]
        flags = _RESPONSE | (0 if addresses is not None else _NXDOMAIN) | (_CUT if len(fitting) < len(records) else 0)
        counts = b"".join(number.to_bytes(2) for number in (flags, 1, len(fitting), 0, 0))
        return query[:2] + counts + query[_HEADER : end + 4] + b"".join(fitting)


class _Protocol(asyncio.DatagramProtocol):
    def __init__(self, server: DnsServer) -> None:
        self._server = server
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str | object, int]) -> None:
        answer = self._server.answer(data)
        if not self._server.silent:
            self._transport.sendto(answer, addr)


@contextmanager
def serving_dns(**names: list[str]) -> Iterator[DnsServer]:
    """Run a DNS server: `with serving_dns(**{"pool.internal": ["127.0.0.1"]}) as dns:`; `dns.names` may then change."""
    server = DnsServer({name.lower(): addresses for name, addresses in names.items()})
    transport = background.wait(_listen(server))
    try:
        yield server
    finally:
        background.wait(_close(transport))


async def _listen(server: DnsServer) -> asyncio.DatagramTransport:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: _Protocol(server), local_addr=(HOST, 0))
    server.port = transport.get_extra_info("sockname")[1]
    return transport


async def _close(transport: asyncio.DatagramTransport) -> None:
    transport.close()


def _name(query: bytes) -> tuple[str, int]:
    """Return the name in the question in lower case, and the offset of its end."""
    labels, at = [], _HEADER
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode("latin-1").lower())
        at += 1 + length
    return ".".join(labels), at + 1


def _most(query: bytes, end: int) -> int:
    """Return the maximum size of a response."""
    return int.from_bytes(query[end + 3 : end + 5]) if query[end:].startswith(_OPT) else _UNSAID


def _record(address: str) -> bytes:
    kind, family = (_AAAA, socket.AF_INET6) if ":" in address else (_A, socket.AF_INET)
    packed = socket.inet_pton(family, address)
    fixed = kind.to_bytes(2) + (1).to_bytes(2) + _TTL.to_bytes(4) + len(packed).to_bytes(2)
    return _TO_THE_QUESTION + fixed + packed

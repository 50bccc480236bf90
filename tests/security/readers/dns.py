"""Answers of the resolvers that a fleet names."""

from __future__ import annotations

import asyncio
import inspect
import socket
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from lbctl.ir.address import Address
from lbctl.runtime.net.resolve import UnresolvedError, resolve
from lbctl.serve.discovery.dns import DnsSource
from tests.support.bounds import Case, Reader

_SECONDS = 0.6
_OTHERS = 10
"""Threads of this test and of the reading that runs alongside it."""
_Answers = Callable[[bytes], list[bytes]]
_TIMEOUT = inspect.signature(DnsSource).parameters["timeout"].default


def _answer(query: bytes, records: bytes = b"", count: int = 0, flags: bytes = b"\x84\x00") -> bytes:
    end = query.index(b"\0", 12) + 5
    return query[:2] + flags + b"\0\1" + count.to_bytes(2) + b"\0\0\0\0" + query[12:end] + records


def _record(kind: int, data: bytes) -> bytes:
    return b"\xc0\x0c" + kind.to_bytes(2) + b"\0\1\0\0\0\1" + len(data).to_bytes(2) + data


def _asked(
    answers: Callable[[bytes], list[bytes]], stream: Callable[[socket.socket, bytes], None] | None = None
) -> Case:
    """Return the case in which a resolver sends these datagrams, and over TCP the bytes that `stream` sends."""

    async def case() -> bool:
        listening, datagrams = _sockets()
        with listening, datagrams:
            port = listening.getsockname()[1]
            datagrams.settimeout(5.0)
            listening.settimeout(5.0)
            threading.Thread(target=_serve, args=(datagrams, answers), daemon=True).start()
            if stream is not None:
                threading.Thread(target=_accept, args=(listening, stream), daemon=True).start()
            try:
                return bool((await resolve("a.example", [Address("127.0.0.1", port)], _SECONDS)).addresses)
            except UnresolvedError:
                return False

    return case


def _sockets() -> tuple[socket.socket, socket.socket]:
    """Return a TCP and a UDP socket with the same port."""
    while True:
        listening = socket.create_server(("127.0.0.1", 0))
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            datagrams.bind(listening.getsockname())
        except OSError:
            listening.close()
            datagrams.close()
            continue
        return listening, datagrams


def _serve(datagrams: socket.socket, answers: _Answers) -> None:
    try:
        while True:
            query, asking = datagrams.recvfrom(4096)
            for answer in answers(query):
                datagrams.sendto(answer, asking)
    except OSError:
        return


def _accept(listening: socket.socket, stream: Callable[[socket.socket, bytes], None]) -> None:
    try:
        connection, _ = listening.accept()
        with connection:
            stream(connection, connection.recv(4096)[2:])
    except OSError:
        return


def _flood(connection: socket.socket, query: bytes) -> None:
    while True:
        connection.sendall(b"\xff\xff" + bytes(65_535))


def _silence(connection: socket.socket, query: bytes) -> None:
    connection.sendall(b"\xff\xff")
    connection.recv(1)


async def _localhost() -> bool:
    return "127.0.0.1" in (await resolve("localhost", (), 5.0)).addresses


def _system(answer: Callable[[threading.Event], object]) -> Case:
    """Return the case in which the system's resolver behaves like this in a hundred lookups of one name."""

    async def case() -> bool:
        ended, look_up = threading.Event(), socket.getaddrinfo

        def answered(name: str, *arguments: Any, **options: Any) -> object:
            return look_up(name, *arguments, **options) if name == "localhost" else answer(ended)

        with patch.object(socket, "getaddrinfo", answered):
            before = threading.active_count()
            lookups = [resolve("a.example", (), _SECONDS) for _ in range(100)]
            results = await asyncio.gather(*lookups, return_exceptions=True)
            assert threading.active_count() <= before + _OTHERS
            ended.set()
        return not any(isinstance(result, UnresolvedError) for result in results)

    return case


def _hangs(ended: threading.Event) -> object:
    ended.wait(10.0)
    raise OSError("too late")


def _is_broken(_: threading.Event) -> object:
    raise UnicodeError("label too long")


def _cut(query: bytes) -> list[bytes]:
    return [_answer(query, flags=b"\x86\x00")]


_ALIAS = _record(5, b"\xc0\x0c")
_LOOP = b"\xc0\x2b\0\1\0\1\0\0\0\1\0\x04\x0a\0\0\1"
READERS = (
    Reader(
        "DNS server's response",
        f"64 KiB (DNS), {_TIMEOUT:g} s in total",
        _asked(lambda query: [_answer(query, _record(1, b"\x0a\0\0\1"), 1)]),
        {
            "endless datagrams of another question": _asked(lambda query: [b"xx" + _answer(query)[2:]] * 20_000),
            "endless stream": _asked(_cut, _flood),
            "endless aliases": _asked(lambda query: [_answer(query, _ALIAS * 40, 40)]),
            "slow": _asked(lambda query: []),
            "slow stream": _asked(_cut, _silence),
            "malformed bytes": _asked(lambda query: [query[:2] + b"\xff" * 500]),
            "malformed pointer": _asked(lambda query: [_answer(query, _LOOP, 1)]),
            "malformed address": _asked(lambda query: [_answer(query, _record(1, b"\x0a"), 1)]),
            "malformed nothing": _asked(lambda query: [b""]),
            "malformed count": _asked(lambda query: [_answer(query, b"", 65_535)]),
        },
        2 * _SECONDS,
    ),
    Reader(
        "system resolver's response",
        f"one lookup per name at a time, {_TIMEOUT:g} s per query",
        _localhost,
        {
            "endless lookup": _system(_hangs),
            "malformed": _system(_is_broken),
            "malformed answer": _system(lambda _: [(socket.AF_INET, 0, 0, "", ("169.254.169.254", 0))]),
        },
        2 * _SECONDS,
    ),
)

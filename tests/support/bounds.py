"""Readers of foreign input, hostile peers for them, and the cost of reading for this process."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace

MAX_MEMORY = 64 << 20
"""Maximum memory for reading a hostile input."""
MAX_BLOCKED = 0.5
"""Maximum processor time of one turn of the event loop, in seconds."""
_GRACE = 20.0
"""Additional seconds after the time limit of a reader, because the machine may be busy."""
_BEAT = 0.02
_PIECE = 1 << 16

Case = Callable[[], Awaitable[bool]]
"""Reads one input; returns whether it was accepted."""
Script = Callable[[socket.socket], None]
"""Behaviour of a peer on a connection, in a thread."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A row of the table of readers in SECURITY.md."""

    name: str
    """First column."""
    bound: str
    """Second column, built from the constants in the code."""
    good: Case
    """An input that is accepted, even while a hostile one is being read."""
    hostile: Mapping[str, Case] = field(repr=False)
    """Name → an input. The name begins with `endless`, `slow`, `deep` or `malformed`.

    `make test` sends the first two of each of these kinds, `make test-all` sends all.
    """
    seconds: float = 1.0
    """Time limit of the reader in this test."""
    ignores: frozenset[str] = frozenset()
    """Hostile inputs that are accepted, because the reader skips their hostile parts."""
    patched: Callable[[], AbstractContextManager[object]] = nullcontext
    """Changes the reader's module for this test. Readings overlap, so they must not change it themselves."""


def kind_of(name: str) -> str:
    """Return the kind of a hostile input: the first word of its name."""
    return name.partition(" ")[0]


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of reading one hostile input, and the result."""

    accepted: bool
    others_went_on: bool
    seconds: float
    memory: int
    """Peak memory in bytes, relative to the memory before."""
    blocked: float
    """Longest turn of the event loop, in seconds of processor time."""


def cost_of(reader: Reader, name: str) -> Cost:
    """Read a hostile input with a reader, and the good input at the same time, in an event loop.

    Memory tracing makes a turn of the loop several times longer. If one is too long, the input is read again without
    tracing.
    """
    gc.collect()  # otherwise a collection at the limit of the recursion may end objects of earlier tests, which fails
    with reader.patched():
        cost = asyncio.run(_cost(reader, reader.hostile[name], is_traced=True))
        if cost.blocked < MAX_BLOCKED:
            return cost
        untraced = asyncio.run(_cost(reader, reader.hostile[name], is_traced=False))
        return replace(cost, blocked=untraced.blocked)


async def _cost(reader: Reader, hostile: Case, *, is_traced: bool) -> Cost:
    assert await _is_accepted(reader.good)
    turns: list[float] = []
    beat = asyncio.create_task(_beat(turns))
    if is_traced:
        tracemalloc.start()
    started = time.monotonic()
    try:
        before = tracemalloc.get_traced_memory()[0]
        async with asyncio.timeout(reader.seconds + _GRACE):
            task = asyncio.create_task(_run(hostile))
            await asyncio.sleep(_BEAT)
            went_on = await _is_accepted(reader.good)
            accepted = await task
        seconds = time.monotonic() - started
        return Cost(accepted, went_on, seconds, tracemalloc.get_traced_memory()[1] - before, max(turns, default=0.0))
    finally:
        tracemalloc.stop()
        beat.cancel()


async def _is_accepted(good: Case) -> bool:
    """Read the good input, at most three times: on a busy machine, a reader's own time limit may end a reading."""
    for _ in range(3):
        if await good():
            return True
    return False


async def _run(case: Case) -> bool:
    return await case()


async def _beat(turns: list[float]) -> None:
    while True:
        before = time.thread_time()
        await asyncio.sleep(_BEAT)
        turns.append(time.thread_time() - before)


def against(script: Script, read: Callable[[int], Awaitable[bool]]) -> Case:
    """Return the case in which `read` connects to a port of loopback where a peer follows the script."""

    async def case() -> bool:
        with peer(script) as port:
            return await read(port)

    return case


def inputs(read: Callable[[int], Awaitable[bool]], scripts: Mapping[str, Script]) -> dict[str, Case]:
    """Return the cases in which `read` meets these peers."""
    return {name: against(script, read) for name, script in scripts.items()}


@contextmanager
def peer(script: Script) -> Iterator[int]:
    """Listen on loopback, follow the script on each connection, and yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_accept, args=(listening, script), daemon=True).start()
        try:
            yield listening.getsockname()[1]
        finally:
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)


def _accept(listening: socket.socket, script: Script) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        threading.Thread(target=_serve, args=(connection, script), daemon=True).start()


def _serve(connection: socket.socket, script: Script) -> None:
    with connection, suppress(OSError):
        connection.settimeout(30.0)
        script(connection)


def sends(first: bytes, repeated: bytes = b"", *, times: int = 0, after: bytes = b"\r\n\r\n") -> Script:
    """Wait for a request that contains `after`, send `first`, then send `repeated` `times` times.

    `times` of 0 means repeatedly, until the reader stops.
    """

    def script(connection: socket.socket) -> None:
        _await(connection, after)
        connection.sendall(first)
        if times:
            connection.sendall(repeated * times)
        else:
            endlessly(connection, repeated)

    return script


def endlessly(connection: socket.socket, piece: bytes) -> None:
    """Send a piece repeatedly until the reader stops; send nothing if it is empty."""
    pieces = piece * max(1, _PIECE // len(piece)) if piece else b""
    while pieces:
        connection.sendall(pieces)


def trickles(data: bytes, pause: float = 0.2, *, after: bytes = b"\r\n\r\n") -> Script:
    """Wait for a request, then send one byte after each `pause`, and repeat the last byte."""

    def script(connection: socket.socket) -> None:
        _await(connection, after)
        for byte in data:
            connection.sendall(bytes((byte,)))
            time.sleep(pause)
        while data:
            connection.sendall(data[-1:])
            time.sleep(pause)

    return script


def _await(connection: socket.socket, text: bytes) -> None:
    received = b""
    while text not in received:
        piece = connection.recv(_PIECE)
        if not piece:
            raise ConnectionError
        received += piece


def json_peers(start: bytes, head: bytes = b"HTTP/1.1 200 OK\r\n\r\n") -> dict[str, Script]:
    """Return hostile peers for a JSON reader. If its responses are nested, the hostile value follows `start`."""
    return {
        "endless text": sends(head + start + b'"', b"x"),
        "endless lists": sends(head + start + b"[", b"[],"),
        "endless spaces": sends(head + start, b" "),
        "deep": sends(head + start + b"[" * 200_000),
        "deep and whole": sends(head + start + b"[" * 500 + b"]" * 500 + b"}"),
        "slow": trickles(head + start),
        "malformed types": sends(head + start + b'[1,null,"x",{"name":[1]},{"name":{"a":1}}]}'),
        "malformed values": sends(head + start + b"[", b'{"a":1},', times=1_000_000),
        "malformed type": sends(head + b"[1]"),
        "malformed bytes": sends(head + start + b"\xff\xfe}"),
        "malformed number": sends(head + start + b"9" * 5000 + b"}"),
        "malformed page": sends(head + b"<html>"),
    }


def mib(count: int) -> str:
    """Format bytes as MiB."""
    return f"{count / (1 << 20):g} MiB"


def kib(count: int) -> str:
    """Format bytes as KiB."""
    return f"{count / (1 << 10):g} KiB"

"""`python -m tests.benchmarks.lost_posts`: POSTs that HAProxy loses before servers that close idle connections.

Each server closes a connection a given time after its last answer, as uvicorn does, or never. The POSTs of a pool come
at random (a Poisson process) from clients that keep their connections; a rate of 1 a second is sent to many pools side
by side. A POST is lost where its client gets no answer, or a 5xx. `--posts N` (default 20000) for each line, `-k WORD`
takes the lines that hold the word, `--all` adds what lbctl does not render for such servers: kept connections before
servers that close them, which shows that the benchmark sees a loss. It judges nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Binary
from tests.support.processes.fleet import bind, running
from tests.support.processes.ports import HOST

_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_BINARIES: tuple[Binary, ...] = ("haproxy", "haproxy-2.8")
_POOLS_OF_RATE = {1: 200, 50: 4, 500: 1}
"""The pools that are sent to side by side, by POSTs a second for each."""
_SERVERS = 2
_WORK = 0.010
"""The mean seconds that a server takes for an answer, so that some requests of a pool overlap."""
_PATIENCE = 60.0
_BODY = b'{"prompt":"x"}'
_HEAD = (
    f"{'PROXY':<12} {'SERVERS CLOSE':<14} {'CONNECTIONS':<12} {'POSTS/S':>7} {'SENT':>6} {'LOST':>5} {'5XX':>4} "
    f"{'MISSED':>6} {'CONNECTS':>8}"
)


@dataclass(frozen=True, slots=True)
class Case:
    """`closes_after` seconds a server closes an idle connection, None: never; `idle` is what the pool states."""

    binary: Binary
    closes_after: float | None
    idle: str | None
    rate: int

    @property
    def name(self) -> str:
        """What its line begins with."""
        closes = "never" if self.closes_after is None else f"after {self.closes_after:g} s"
        return f"{self.binary:<12} {closes:<14} {'default' if self.idle is None else 'kept':<12} {self.rate:>7}"


def main() -> int:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.lost_posts", description=__doc__)
    parser.add_argument("--posts", type=int, default=20_000)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("-k", default="", dest="word")
    options = parser.parse_args()
    print(_HEAD, flush=True)
    for case in _cases(every=options.all):
        if options.word in case.name:
            print(case.name, _line(case, options.posts), flush=True)
    return 0


def _cases(*, every: bool) -> Iterator[Case]:
    for binary in _BINARIES:
        for rate in _POOLS_OF_RATE:
            for closes_after in (1.0, 2.0, 5.0):
                yield Case(binary, closes_after, None, rate)
                if every:
                    yield Case(binary, closes_after, "unlimited", rate)
            yield Case(binary, None, "unlimited", rate)


def _line(case: Case, posts: int) -> str:
    with _servers(case.closes_after) as (ports, pipe):
        with running(case.binary, _fleet(case, ports)) as gateway:
            outcomes = asyncio.run(_send(gateway.port, case.rate, posts))
        pipe.send(None)
        received, connects = pipe.recv()
    sent, answered = outcomes.total(), outcomes[200]
    errors = sum(count for status, count in outcomes.items() if status >= 500)
    missed = sent - received
    return f"{sent:>6} {sent - answered - errors:>5} {errors:>4} {missed:>6} {connects:>8}"


def _fleet(case: Case, ports: list[int]) -> Fleet:
    """A fleet of as many pools, each with a route of its own, as the rate needs; all have the same servers."""
    pool: dict[str, Any] = {
        "replicas": [{"name": f"r{number}", "address": f"{HOST}:{port}"} for number, port in enumerate(ports)],
        **({} if case.idle is None else {"connections": {"idle": case.idle}}),
    }
    names = range(_POOLS_OF_RATE[case.rate])
    return {
        "version": 1,
        "listeners": {"gateway": {"bind": bind(), "access_log": {"format": "none"}}},
        "routes": {f"r{name}": {"match": {"path_prefix": f"/{name}/"}, "pool": f"p{name}"} for name in names},
        "pools": {f"p{name}": pool for name in names},
    }


@contextmanager
def _servers(closes_after: float | None) -> Iterator[tuple[list[int], Connection]]:
    """Start the servers in a process of their own, so that a busy client makes no server slow."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs, closes_after), daemon=True)
    process.start()
    try:
        yield ours.recv(), ours
    finally:
        process.terminate()
        process.join()


def _serve(pipe: Connection, closes_after: float | None) -> None:
    asyncio.run(_listen(pipe, closes_after))


async def _listen(pipe: Connection, closes_after: float | None) -> None:
    counts: Counter[str] = Counter()
    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(lambda: _Server(closes_after, counts), HOST, 0, backlog=1024) for _ in range(_SERVERS)
    ]
    pipe.send([each.sockets[0].getsockname()[1] for each in servers])
    asked = asyncio.Event()
    loop.add_reader(pipe.fileno(), asked.set)
    await asked.wait()
    pipe.send((counts["posts"], counts["connections"]))


class _Server(asyncio.Protocol):
    """One connection: it answers each POST after a while, and is closed so long after its last answer."""

    def __init__(self, closes_after: float | None, counts: Counter[str]) -> None:
        self._closes_after = closes_after
        self._counts = counts
        self._data = b""
        self._is_new = True
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._timer:
            self._timer.cancel()
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        if end and len(body) >= len(_BODY):
            self._data = b""
            self._counts["posts"] += 1
            self._counts["connections"] += self._is_new
            self._is_new = False
            close = b"\r\nconnection: close" in head.lower()
            asyncio.get_running_loop().call_later(random.expovariate(1 / _WORK), self._answer, close)

    def _answer(self, close: bool) -> None:
        self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
        if close:
            self._transport.close()
        elif self._closes_after is not None:
            self._timer = asyncio.get_running_loop().call_later(self._closes_after, self._transport.close)


async def _send(port: int, rate: int, posts: int) -> Counter[int]:
    """Return how many POSTs were answered with which status; 0: without an answer."""
    pools = _POOLS_OF_RATE[rate]
    outcomes: Counter[int] = Counter()
    idle: list[_Connection] = []
    await asyncio.gather(*(_arrivals(port, name, rate, posts // pools, idle, outcomes) for name in range(pools)))
    for _, writer in idle:
        writer.close()
    return outcomes


async def _arrivals(
    port: int, name: int, rate: int, posts: int, idle: list[_Connection], outcomes: Counter[int]
) -> None:
    """Send the POSTs of one pool, each at its random time, whatever the ones before it do."""
    loop = asyncio.get_running_loop()
    at = loop.time()
    async with asyncio.TaskGroup() as group:
        for _ in range(posts):
            at += random.expovariate(rate)
            await asyncio.sleep(at - loop.time())
            group.create_task(_post(port, name, idle, outcomes))


async def _post(port: int, name: int, idle: list[_Connection], outcomes: Counter[int]) -> None:
    connection = idle.pop(random.randrange(len(idle))) if idle else await asyncio.open_connection(HOST, port)
    reader, writer = connection
    status = 0
    with contextlib.suppress(OSError, EOFError, TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            status = await _exchange(reader, writer, name)
    outcomes[status] += 1
    if status == 200:
        idle.append(connection)
    else:
        writer.close()


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: int) -> int:
    writer.write(
        b"POST /%d/v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%s" % (name, len(_BODY), _BODY)
    )
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
    await reader.readexactly(length)
    return int(head.split()[1])


if __name__ == "__main__":
    raise SystemExit(main())

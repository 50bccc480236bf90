"""Requests to a proxy when they are due, whatever becomes of the earlier ones, and what came of each.

Light enough for hundreds a second beside the engines in the same process: each connection is kept and takes one request
at a time. A failure is kept as such; nothing is sent twice.
"""

from __future__ import annotations

import asyncio
import math
import random
import resource
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tests.e2e.support.ports import HOST

PATIENCE = 60.0
"""Seconds for which a client waits for the first byte; then it closes its connection, and has failed."""
_SHORT = 10
"""Tokens."""


@dataclass(frozen=True, slots=True)
class Due:
    """`at`: seconds from the start. Tokens."""

    at: float
    prompt: int
    answer: int


@dataclass(slots=True)
class Sent:
    """Seconds on the clock. `first` and `last` byte of the answer, None as long as they have not come."""

    at: float
    answer: int
    first: float | None = None
    last: float | None = None
    status: int = 0
    replica: str = ""
    broken: bool = False

    @property
    def failed(self) -> bool:
        return self.broken or self.status not in (0, 200)


@dataclass(frozen=True, slots=True)
class Told:
    """What came of requests, in seconds. Those without an answer at `now` count with the time that they have waited,
    those that failed, or whose client left, with `PATIENCE`."""

    sent: tuple[Sent, ...]
    now: float

    def first_token(self, percentile: float) -> float:
        return _percentile([self._took(item, item.first) for item in self.sent], percentile)

    def whole(self, percentile: float) -> float:
        return _percentile([self._took(item, item.last) for item in self.sent], percentile)

    def per_token(self, percentile: float) -> float:
        """Of the whole time of a request, a token; without the shortest answers, which are all waiting."""
        each = [self._took(item, item.last) / item.answer for item in self.sent if item.answer >= _SHORT]
        return _percentile(each, percentile)

    def shares(self) -> dict[str, float]:
        counts = Counter(item.replica for item in self.sent if item.replica)
        return {name: count / counts.total() for name, count in counts.items()}

    @property
    def failed(self) -> int:
        return sum(item.failed for item in self.sent)

    def _took(self, item: Sent, end: float | None) -> float:
        return PATIENCE if item.failed else (end or self.now) - item.at


def poisson(rate: float, seconds: float, prompt: float, answer: float, spread: float, seed: str) -> list[Due]:
    """`prompt`, `answer`: the means of lognormal lengths whose logarithms have the deviation `spread`."""
    rng = random.Random(seed)
    shift = spread**2 / 2
    found, now = [], 0.0
    while (now := now + rng.expovariate(rate)) < seconds:
        lengths = [math.exp(rng.gauss(math.log(mean) - shift, spread)) for mean in (prompt, answer)]
        found.append(Due(now, max(1, round(lengths[0])), max(2, min(round(lengths[1]), round(8 * answer)))))
    return found


class Load:
    """Of one proxy (or several, in turn). `path` begins with a slash and has no query."""

    def __init__(self, ports: Sequence[int], path: str) -> None:
        self._ports = ports
        self._path = path
        self._idle: dict[int, deque[_Client]] = {port: deque() for port in ports}
        self._all: list[_Client] = []
        self.sent: list[Sent] = []

    async def run(self, requests: Iterable[Due], began: float) -> None:
        """`began`: when those of 0 s are due. Ends when the last one is sent."""
        async with asyncio.TaskGroup() as group:
            for number, due in enumerate(requests):
                pause = began + due.at - time.monotonic()
                if pause > 0:
                    await asyncio.sleep(pause)
                mine = Sent(time.monotonic(), due.answer)
                self.sent.append(mine)
                group.create_task(self._send(self._ports[number % len(self._ports)], due, mine))

    async def _send(self, port: int, due: Due, mine: Sent) -> None:
        idle = self._idle[port]
        client = idle.popleft() if idle else None
        if client is None or client.closed:
            try:
                _, client = await asyncio.get_running_loop().create_connection(lambda: _Client(idle), HOST, port)
            except OSError:
                mine.broken = True
                return
            self._all.append(client)
        client.ask(f"{self._path}?q={due.prompt}&n={due.answer}", mine)

    def told(self, since: float, until: float) -> Told:
        """Of the requests that were sent then."""
        return Told(tuple(replace(item) for item in self.sent if since <= item.at < until), time.monotonic())

    async def close(self) -> None:
        """Breaks off what still runs."""
        for client in self._all:
            client.close()
        await asyncio.sleep(0)


class _Client(asyncio.Protocol):
    """One connection to a proxy; back among the idle ones when an answer is whole."""

    def __init__(self, idle: deque[_Client]) -> None:
        self._idle = idle
        self._transport: asyncio.Transport | None = None
        self._mine: Sent | None = None
        self._read = b""
        self._left = -1
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def ask(self, path: str, mine: Sent) -> None:
        assert self._transport is not None
        self._mine, self._left = mine, -1
        asyncio.get_running_loop().call_later(PATIENCE, self._leave, mine)
        self._transport.write(f"GET {path} HTTP/1.1\r\nhost: bench\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        mine = self._mine
        if mine is None:
            return
        if self._left < 0:
            head, ended, data = (self._read + data).partition(b"\r\n\r\n")
            if not ended:
                self._read = head
                return
            self._read = b""
            self._begin(mine, head)
        self._left -= len(data)
        if self._left <= 0:
            mine.last = time.monotonic()
            self._mine = None
            self._idle.append(self)

    def _begin(self, mine: Sent, head: bytes) -> None:
        mine.first = time.monotonic()
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        mine.status = int(status.split(" ")[1])
        mine.replica = headers.get("x-replica", "")
        self._left = int(headers.get("content-length", "0"))

    def _leave(self, mine: Sent) -> None:
        if mine is self._mine and mine.first is None:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if self._mine is not None:
            self._mine.broken = True

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _percentile(values: list[float], percentile: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percentile / 100))] if ordered else 0.0


async def lateness(seconds: float) -> float:
    """The 99th percentile of how late this event loop is, in seconds: what a measurement in it cannot tell apart."""
    loop = asyncio.get_running_loop()
    found, end = [], loop.time() + seconds
    while (due := loop.time() + 0.02) < end:
        await asyncio.sleep(0.02)
        found.append(loop.time() - due)
    return _percentile(found, 99)


def many_connections(wanted: int) -> None:
    """Lets this process have as many as the system allows, and says so where they are fewer: clients and engines take
    two for each request in flight, and an overloaded fleet has thousands of them."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most < wanted:
        print(f"{most} open files are allowed; {wanted} are needed, or requests fail (ulimit -Hn)", file=sys.stderr)

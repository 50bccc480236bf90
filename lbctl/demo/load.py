"""Sends requests to a proxy at scheduled times, independently of earlier requests, and measures each one.

The generator can send hundreds of requests per second even though it shares its process with the simulated replicas.
Connections are kept open, and each handles one request at a time. Requests are never retried, so every failure is
counted.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lbctl.base.percentiles import percentile_of
from lbctl.demo.replica import HOST
from lbctl.simulate import load
from lbctl.simulate.load import Lengths

FIRST_BYTE_TIMEOUT = 60.0
"""Maximum time that a client waits for the first byte, in seconds. After that, the client closes its connection, and
the request counts as failed."""
_SHORT = 10
"""Maximum length of a response that counts as short, in tokens."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A scheduled request."""

    at: float
    """Arrival time, in seconds after the start."""
    prompt: int
    """Prompt length, in tokens."""
    answer: int
    """Response length, in tokens."""


@dataclass(slots=True)
class SentRequest:
    """A request that was sent. Times are in seconds on the monotonic clock."""

    at: float
    answer: int
    """Response length, in tokens."""
    first: float | None = None
    """Time at which the first byte of the response arrived, if any."""
    last: float | None = None
    """Time at which the last byte arrived, if any."""
    status: int = 0
    replica: str = ""
    broken: bool = False
    """Whether the connection ended before the response was complete."""

    @property
    def failed(self) -> bool:
        """Whether the response is an error or is incomplete."""
        return self.broken or self.status not in (0, 200)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The outcomes of requests, in seconds.

    For a request without a response, the waiting time until `now` is used, and for a failed request, `patience`.
    """

    sent: tuple[SentRequest, ...]
    """Requests in the order in which they were sent."""
    now: float
    """Current time on the monotonic clock."""
    patience: float = FIRST_BYTE_TIMEOUT
    """Maximum time that a client waits for the first byte."""

    def first_token(self, percentile: float) -> float:
        """Return the time-to-first-token percentile (0 to 100)."""
        return percentile_of([self._duration(item, item.first) for item in self.sent], percentile)

    def whole(self, percentile: float) -> float:
        """Return the time-to-last-token percentile."""
        return percentile_of([self._duration(item, item.last) for item in self.sent], percentile)

    def per_token(self, percentile: float) -> float:
        """Return the time-per-token percentile.

        Short responses are excluded, because most of their duration is waiting time.
        """
        each = [self._duration(item, item.last) / item.answer for item in self.sent if item.answer >= _SHORT]
        return percentile_of(each, percentile)

    def shares(self) -> dict[str, float]:
        """Map each replica to its share of the responses."""
        counts = Counter(item.replica for item in self.sent if item.replica)
        return {name: count / counts.total() for name, count in counts.items()}

    def of_replica(self, name: str) -> Outcomes:
        """Return the outcomes of the requests that this replica served."""
        return replace(self, sent=tuple(item for item in self.sent if item.replica == name))

    @property
    def failed(self) -> int:
        """Number of failed requests."""
        return sum(item.failed for item in self.sent)

    def slow(self, limit: float) -> int:
        """Return the number of requests that failed or waited longer than `limit` seconds for their first token."""
        return sum(item.failed or self._duration(item, item.first) > limit for item in self.sent)

    def _duration(self, item: SentRequest, end: float | None) -> float:
        return self.patience if item.failed else (end or self.now) - item.at


def poisson(rate: float, seconds: float, lengths: Lengths, seed: str) -> list[Arrival]:
    """Return Poisson arrivals for requests of these lengths. `rate` is per second."""
    trace = load.poisson(rate, seconds, lengths, seed)
    return [Arrival(*each) for each in zip(trace.times, trace.prompts, trace.answers, strict=True)]


class LoadGenerator:
    """Sends requests to one listener, or to several in turn.

    `path` begins with a slash and has no query string. If `keep` is set, connections are reused. A request fails if a
    proxy closes an idle connection just as it is being reused, as nginx may do during a reload.
    """

    def __init__(
        self, ports: Sequence[int], path: str, patience: float = FIRST_BYTE_TIMEOUT, *, keep: bool = True
    ) -> None:
        self._ports = ports
        self._path = path
        self.patience = patience
        self._idle: dict[int, deque[_Connection] | None] = {port: deque() if keep else None for port in ports}
        self._all: set[_Connection] = set()
        self.sent: list[SentRequest] = []
        """Requests, sorted by time."""

    async def run(self, arrivals: Iterable[Arrival], began: float) -> None:
        """Send all requests, scheduled relative to `began`. Returns after the last request has been sent."""
        async with asyncio.TaskGroup() as group:
            for number, arrival in enumerate(arrivals):
                pause = began + arrival.at - time.monotonic()
                if pause > 0:
                    await asyncio.sleep(pause)
                request = SentRequest(time.monotonic(), arrival.answer)
                self.sent.append(request)
                group.create_task(self._send(self._ports[number % len(self._ports)], arrival, request))

    async def _send(self, port: int, arrival: Arrival, request: SentRequest) -> None:
        idle = self._idle[port]
        connection = idle.popleft() if idle else None
        if connection is None or connection.closed:
            try:
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(idle, self.patience, self._all), HOST, port
                )
            except OSError:
                request.broken = True
                return
        connection.send(f"{self._path}?q={arrival.prompt}&n={arrival.answer}", request)

    def outcomes(self, since: float, until: float) -> Outcomes:
        """Return the current outcomes of requests that were sent between `since` and `until`."""
        first, end = (bisect_left(self.sent, moment, key=lambda item: item.at) for moment in (since, until))
        return Outcomes(tuple(map(replace, self.sent[first:end])), time.monotonic(), self.patience)

    async def close(self) -> None:
        """Abort all requests that are still running."""
        for connection in list(self._all):
            connection.close()
        await asyncio.sleep(0)


class _Connection(asyncio.Protocol):
    """A connection to a proxy. After each complete response, it is added to `idle`, or closed if `idle` is None."""

    def __init__(self, idle: deque[_Connection] | None, patience: float, every: set[_Connection]) -> None:
        self._idle = idle
        self._patience = patience
        self._every = every
        self._transport: asyncio.Transport | None = None
        self._request: SentRequest | None = None
        self._read = b""
        self._left = -1
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._every.add(self)

    def send(self, path: str, request: SentRequest) -> None:
        """Send a request."""
        assert self._transport is not None
        self._request, self._left = request, -1
        asyncio.get_running_loop().call_later(self._patience, self._give_up, request)
        self._transport.write(f"POST {path} HTTP/1.1\r\nhost: demo\r\ncontent-length: 0\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        request = self._request
        if request is None:
            return
        if self._left < 0:
            head, ended, data = (self._read + data).partition(b"\r\n\r\n")
            if not ended:
                self._read = head
                return
            self._read = b""
            self._begin(request, head)
        self._left -= len(data)
        if self._left <= 0:
            request.last = time.monotonic()
            self._request = None
            self._release()

    def _release(self) -> None:
        if self._idle is not None:
            self._idle.append(self)
        elif self._transport is not None:
            self._transport.close()

    def _begin(self, request: SentRequest, head: bytes) -> None:
        request.first = time.monotonic()
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        request.status = int(status.split(" ")[1])
        request.replica = headers.get("x-replica", "")
        self._left = int(headers.get("content-length", "0"))

    def _give_up(self, request: SentRequest) -> None:
        if request is self._request and request.first is None:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self.closed = True
        self._every.discard(self)
        if self._request is not None:
            self._request.broken = True

    def close(self) -> None:
        """Abort the connection."""
        if self._transport is not None:
            self._transport.abort()


async def lateness(seconds: float) -> float:
    """Return the 99th percentile of this event loop's lateness, in seconds, which is the error of its measurements."""
    loop = asyncio.get_running_loop()
    late, end = [], loop.time() + seconds
    while (due := loop.time() + 0.02) < end:
        await asyncio.sleep(0.02)
        late.append(loop.time() - due)
    return percentile_of(late, 99)

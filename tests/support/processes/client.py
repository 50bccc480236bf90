"""The clients of the tests: HTTP, gRPC and WebSocket. Each request is sent once, and every failure is recorded.

`send…` starts a request and returns a future, for actions in the meantime; the plain names wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import aiohttp

from tests.support.processes import background
from tests.support.processes.grpc_client import Reply, Where, call
from tests.support.processes.http1 import Connection, Request, Response, Target
from tests.support.processes.ports import HOST
from tests.support.processes.waiting import eventually

_ANSWERED = 20.0
"""Maximum seconds until the requests of a period have been answered."""
_FEW = 24
"""Number of responses of which some certainly go to each of two replicas."""

Headers = Mapping[str, str] | Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Load:
    """The results of many requests, in the order in which they ended, and the number of connections."""

    responses: tuple[Response, ...]
    connections: int
    seconds: float

    @property
    def failures(self) -> list[Response]:
        """Return every response that is not a complete 2xx."""
        return [response for response in self.responses if not response.ok]

    @property
    def statuses(self) -> Counter[int]:
        """Count the responses by status; 0 means no response."""
        return Counter(response.status for response in self.responses)

    @property
    def errors(self) -> Counter[str]:
        """Count the transport errors (http1.Error)."""
        return Counter(response.error for response in self.responses if response.error)

    @property
    def by_replica(self) -> Counter[str]:
        """Count the complete 2xx responses by replica."""
        return Counter(response.replica or "" for response in self.responses if response.ok)

    def shares(self) -> dict[str, float]:
        """Return each replica's share of the complete 2xx responses, from 0 to 1."""
        counts = self.by_replica
        return {name: count / counts.total() for name, count in sorted(counts.items())}

    def percentile(self, percent: float) -> float:
        """Return the percentile of the duration of all requests, in seconds."""
        ordered = sorted(response.seconds for response in self.responses)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]

    def assert_no_failure(self) -> None:
        """Fail with the details of the first failures."""
        assert not self.failures, f"{len(self.failures)} failures:\n" + "\n".join(map(str, self.failures[:5]))


@dataclass(frozen=True, slots=True)
class Echo:
    """A WebSocket conversation: the status of the handshake, the received messages, the close code."""

    status: int
    replies: tuple[str, ...] = ()
    replica: str | None = None
    close_code: int | None = None


class Client:
    """A client of one port. `tls` trusts the CA in `certs.client_context`, `server_name` is sent as SNI.

    For HTTP: `source` is the local address, and `preamble` the first bytes of each connection. `keeps_connections`:
    whether loads reuse connections by default.
    """

    keeps_connections = True

    def __init__(
        self,
        port: int,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        *,
        source: str | None = None,
        preamble: bytes = b"",
    ) -> None:
        self.port = port
        self.tls = tls
        self.server_name = server_name
        self._target = Target(port, HOST, tls, server_name, source, preamble)
        self._where = Where(port, tls, server_name)

    def url(self, path: str = "/") -> str:
        """Return the URL of a path, for other clients."""
        return f"{'https' if self._target.tls else 'http'}://{HOST}:{self.port}{path}"

    def send(
        self,
        method: str,
        path: str,
        headers: Headers = (),
        body: bytes = b"",
        *,
        timeout: float = 30.0,
        chunked: bool = False,
    ) -> Future[Response]:
        """Start one request on a separate connection. Cancelling the future closes that connection."""
        return background.start(self._once(Request(method, path, headers, body, chunked, timeout)))

    def request(
        self,
        method: str,
        path: str,
        headers: Headers = (),
        body: bytes = b"",
        *,
        timeout: float = 30.0,
        chunked: bool = False,
    ) -> Response:
        """Send one request on a separate connection, within `timeout` seconds.

        With `chunked` the body has no length.
        """
        response = background.wait(self._once(Request(method, path, headers, body, chunked, timeout)), timeout + 5)
        pass_millisecond()
        return response

    def get(self, path: str = "/", headers: Headers = (), *, timeout: float = 30.0) -> Response:
        """Send a GET like `request`."""
        return self.request("GET", path, headers, timeout=timeout)

    def post(
        self,
        path: str = "/",
        body: bytes = b"{}",
        headers: Headers = (),
        *,
        timeout: float = 30.0,
        chunked: bool = False,
    ) -> Response:
        """Send a POST like `request`."""
        return self.request("POST", path, headers, body, timeout=timeout, chunked=chunked)

    def send_load(
        self,
        count: int,
        concurrency: int = 1,
        request: Request | Callable[[int], Request] = Request(),  # noqa: B008  a frozen value
        *,
        keep_alive: bool | None = None,
        gap: float = 0.0,
        jitter: float = 0.1,
    ) -> Future[Load]:
        """Start `count` requests on `concurrency` connections, each of which waits for its response before the next
        request.

        `request` may be a function of the number of the request. `gap` is the pause in seconds between two requests on
        a connection, varied by `jitter` of it. A connection that was closed between two requests is reopened; a
        connection that breaks during a request is a failure of that request.
        """
        make = request if callable(request) else lambda _: request
        keep = self.keeps_connections if keep_alive is None else keep_alive
        return background.start(_load(self._target, count, concurrency, make, keep, (gap, jitter)))

    def load(
        self,
        count: int,
        concurrency: int = 1,
        request: Request | Callable[[int], Request] = Request(),  # noqa: B008  a frozen value
        *,
        keep_alive: bool | None = None,
        gap: float = 0.0,
        jitter: float = 0.1,
    ) -> Load:
        """Send requests like `send_load`, and wait for the end."""
        started = self.send_load(count, concurrency, request, keep_alive=keep_alive, gap=gap, jitter=jitter)
        try:
            return started.result(background.TIMEOUT)
        finally:
            started.cancel()

    def steady(
        self,
        rate: float,
        request: Request | Callable[[int], Request] = Request(),  # noqa: B008  a frozen value
        *,
        keep_alive: bool | None = None,
    ) -> Steady:
        """Send `rate` requests per second during the block: `with client.steady(200) as load:`."""
        keep = self.keeps_connections if keep_alive is None else keep_alive
        return Steady(self._target, rate, request if callable(request) else lambda _: request, keep)

    def grpc(self, method: str, payload: bytes = b"", *, timeout: float = 30.0, **metadata: str) -> Reply:
        """Make one gRPC call, h2c without TLS. `method` is "/package.Service/Method"; underscores in metadata become
        -."""
        pairs = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
        return background.wait(call(self._where, method, payload, pairs, timeout))

    def grpc_load(self, method: str, count: int, concurrency: int = 1, payload: bytes = b"") -> list[Reply]:
        """Make `count` calls, each on a separate connection, `concurrency` at a time."""
        return background.wait(_grpc_load(self._where, method, count, concurrency, payload))

    def websocket(self, path: str, messages: Sequence[str], gap: float = 0.0, protocols: Sequence[str] = ()) -> Echo:
        """Send the messages, `gap` seconds apart, each after the reply to the previous one, and close the
        connection."""
        return background.wait(self._websocket(path, messages, gap, protocols))

    async def _once(self, request: Request) -> Response:
        connection = Connection(self._target)
        try:
            return await connection.exchange(request)
        finally:
            await connection.close()

    async def _websocket(self, path: str, messages: Sequence[str], gap: float, protocols: Sequence[str]) -> Echo:
        tls = self._target.tls if self._target.tls is not None else True
        async with aiohttp.ClientSession() as session:
            try:
                socket = await session.ws_connect(
                    self.url(path),
                    ssl=tls,
                    server_hostname=self._target.server_name,
                    timeout=_WS_TIMEOUT,
                    protocols=protocols,
                )
            except aiohttp.WSServerHandshakeError as refused:
                return Echo(refused.status)
            async with socket:
                replies = []
                for message in messages:
                    try:
                        await socket.send_str(message)
                    except aiohttp.ClientConnectionResetError:  # the conversation has ended in the meantime
                        break
                    reply = await socket.receive(30)
                    if reply.type is not aiohttp.WSMsgType.TEXT:
                        break
                    replies.append(str(reply.data))
                    await asyncio.sleep(gap)
            name = socket._response.headers.get("x-replica")
            return Echo(101, tuple(replies), name, socket.close_code)


class Steady:
    """Requests at a constant rate: a slow response does not delay other requests.

    Each takes an idle connection (with `keep_alive`) or a new one, and is sent once. After the block, `load` contains
    the results.
    """

    def __init__(self, target: Target, rate: float, make: Callable[[int], Request], keep_alive: bool = True) -> None:
        self._target = target
        self._rate = rate
        self._make = make
        self._keep_alive = keep_alive
        self._idle: list[Connection] = []
        self._all: list[Connection] = []
        self._responses: list[Response] = []
        self._waiting: set[float] = set()
        self._started = 0.0
        self._running: Future[None] | None = None
        self._stop = asyncio.Event()

    def __enter__(self) -> Steady:
        self._started = time.monotonic()
        self._running = background.start(self._run())
        return self

    def __exit__(self, *_: object) -> None:
        background.wait(self._end())
        assert self._running is not None
        self._running.result(background.TIMEOUT)

    @property
    def load(self) -> Load:
        """Return the results up to now."""
        opened = sum(connection.opened for connection in self._all)
        return Load(tuple(self._responses), opened, time.monotonic() - self._started)

    def since(self, moment: float) -> Load:
        """Return the part of the load that was sent between `moment` (`time.monotonic()`) and this call, at least a few
        requests. Waits for their responses, which are late on a busy machine."""
        until = time.monotonic()
        with contextlib.suppress(AssertionError):  # the test must judge requests without a response
            eventually(lambda: self._are_answered(moment, until), _ANSWERED)
        whole = self.load
        later = tuple(response for response in whole.responses if response.started >= moment)
        return Load(later, whole.connections, time.monotonic() - moment)

    def _are_answered(self, first: float, last: float) -> bool:
        answered = sum(response.started >= first for response in self._responses)
        return answered >= _FEW and not any(first <= moment <= last for moment in tuple(self._waiting))

    async def _end(self) -> None:
        self._stop.set()

    async def _run(self) -> None:
        number = 0
        async with asyncio.TaskGroup() as group:
            while not self._stop.is_set():
                group.create_task(self._one(self._make(number)))
                number += 1
                await asyncio.sleep(max(0.0, self._started + number / self._rate - time.monotonic()))
        await asyncio.gather(*(connection.close() for connection in self._all))

    async def _one(self, request: Request) -> None:
        if self._idle:
            connection = self._idle.pop()
        else:
            connection = Connection(self._target)
            self._all.append(connection)
        moment = time.monotonic()
        self._waiting.add(moment)
        try:
            self._responses.append(await connection.exchange(request))
            self._waiting.discard(moment)
            if not self._keep_alive:
                await connection.close()
        finally:
            self._waiting.discard(moment)
            self._idle.append(connection)


def pass_millisecond() -> None:
    """Wait for the next millisecond of the clock.

    Proxies log in milliseconds, so the line of a later request has a later time, whichever worker writes it.
    """
    now = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == now:
        time.sleep(0.0002)


_WS_TIMEOUT = aiohttp.ClientWSTimeout(ws_close=5)


async def _load(
    target: Target,
    count: int,
    concurrency: int,
    make: Callable[[int], Request],
    keep_alive: bool,
    pace: tuple[float, float],
) -> Load:
    numbers = iter(range(count))
    responses: list[Response] = []
    opened = 0
    gap, jitter = pace

    async def worker(chance: random.Random) -> None:
        nonlocal opened
        connection = Connection(target)
        await asyncio.sleep(chance.uniform(0, gap))
        try:
            for number in numbers:
                responses.append(await connection.exchange(make(number)))
                if not keep_alive:
                    await connection.close()
                if gap:
                    await asyncio.sleep(chance.uniform(gap * (1 - jitter), gap * (1 + jitter)))
        finally:
            opened += connection.opened
            await connection.close()

    started = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for seed in range(concurrency):
            group.create_task(worker(random.Random(seed)))
    return Load(tuple(responses), opened, time.monotonic() - started)


async def _grpc_load(where: Where, method: str, count: int, concurrency: int, payload: bytes) -> list[Reply]:
    numbers = iter(range(count))
    replies: list[Reply] = []

    async def worker() -> None:
        replies.extend([await call(where, method, payload, (), 30.0) for _ in numbers])

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(worker())
    return replies

"""The clients of the tests: HTTP, gRPC and WebSocket, each request sent once, every failure kept.

`send…` starts something and gives a future, for what happens meanwhile; the plain names wait for it.
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
"""Seconds until what was sent in a stretch of time has been answered, at most."""
_FEW = 24
"""Answers, of which it is certain that chance brings some to each of two replicas."""

Headers = Mapping[str, str] | Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Load:
    """What came back for many requests, in the order in which they ended, and on how many connections."""

    responses: tuple[Response, ...]
    connections: int
    seconds: float

    @property
    def failures(self) -> list[Response]:
        """Every answer that is no whole 2xx."""
        return [response for response in self.responses if not response.ok]

    @property
    def statuses(self) -> Counter[int]:
        """How often each status came; 0 is none."""
        return Counter(response.status for response in self.responses)

    @property
    def errors(self) -> Counter[str]:
        """How often each transport error came (http1.Error)."""
        return Counter(response.error for response in self.responses if response.error)

    @property
    def by_replica(self) -> Counter[str]:
        """Whole 2xx answers of each replica."""
        return Counter(response.replica or "" for response in self.responses if response.ok)

    def shares(self) -> dict[str, float]:
        """Return the part of the whole 2xx answers that each replica gave, from 0 to 1."""
        counts = self.by_replica
        return {name: count / counts.total() for name, count in sorted(counts.items())}

    def percentile(self, percent: float) -> float:
        """Seconds that so many percent of all requests took at most."""
        ordered = sorted(response.seconds for response in self.responses)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]

    def assert_no_failure(self) -> None:
        """Fails with the first failures spelled out."""
        assert not self.failures, f"{len(self.failures)} failures:\n" + "\n".join(map(str, self.failures[:5]))


@dataclass(frozen=True, slots=True)
class Echo:
    """A WebSocket conversation: the status of the handshake, what came back, the code of the close."""

    status: int
    replies: tuple[str, ...] = ()
    replica: str | None = None
    close_code: int | None = None


class Client:
    """Talks to one port. `tls` trusts what certs.client_context was told, `server_name` goes out as SNI.

    HTTP alone: from the address `source`, with the bytes of `preamble` at the start of each connection.
    `keeps_connections`: whether loads use a connection for more than one request, unless they say themselves.
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
        """Starts one request on a connection of its own; cancelling the future closes that connection."""
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
        """Send one request on a connection of its own, within `timeout` seconds. With `chunked` the body has no
        length."""
        response = background.wait(self._once(Request(method, path, headers, body, chunked, timeout)), timeout + 5)
        pass_millisecond()
        return response

    def get(self, path: str = "/", headers: Headers = (), *, timeout: float = 30.0) -> Response:
        """Send a GET as `request` does."""
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
        """Send a POST as `request` does."""
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
        """Starts `count` requests on `concurrency` connections, each waiting for its answer before the next.

        `request` may be a function of the number of the request. `gap` is the pause in seconds that each connection
        keeps between two requests, give or take `jitter` of it. A connection is opened anew when it was closed between
        two requests; one that breaks under a request is a failure of that request.
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
        """Send requests as `send_load` does, and wait for the end."""
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
        """Send so many requests a second for as long as the block runs: `with client.steady(200) as load:`."""
        keep = self.keeps_connections if keep_alive is None else keep_alive
        return Steady(self._target, rate, request if callable(request) else lambda _: request, keep)

    def grpc(self, method: str, payload: bytes = b"", *, timeout: float = 30.0, **metadata: str) -> Reply:
        """Make one gRPC call, h2c without TLS. `method` is "/package.Service/Method"; underscores in metadata become
        -."""
        pairs = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
        return background.wait(call(self._where, method, payload, pairs, timeout))

    def grpc_load(self, method: str, count: int, concurrency: int = 1, payload: bytes = b"") -> list[Reply]:
        """Make so many calls, each on a connection of its own, `concurrency` at a time."""
        return background.wait(_grpc_load(self._where, method, count, concurrency, payload))

    def websocket(self, path: str, messages: Sequence[str], gap: float = 0.0, protocols: Sequence[str] = ()) -> Echo:
        """Sends the messages, `gap` seconds apart, each after the reply to the one before; then closes."""
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
                    except aiohttp.ClientConnectionResetError:  # the conversation was ended meanwhile
                        break
                    reply = await socket.receive(30)
                    if reply.type is not aiohttp.WSMsgType.TEXT:
                        break
                    replies.append(str(reply.data))
                    await asyncio.sleep(gap)
            name = socket._response.headers.get("x-replica")
            return Echo(101, tuple(replies), name, socket.close_code)


class Steady:
    """Requests at a constant rate, whatever becomes of the earlier ones: a slow answer delays no request, and each
    takes an idle connection (with `keep_alive`) or a new one. Each is sent once. After the block, `load` is what came
    back."""

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
        """What has come back up to now."""
        opened = sum(connection.opened for connection in self._all)
        return Load(tuple(self._responses), opened, time.monotonic() - self._started)

    def since(self, moment: float) -> Load:
        """Return the part of the load that was sent between `moment` (`time.monotonic()`) and this call, a few requests
        at least. Waits for their answers, which are late on a busy machine."""
        until = time.monotonic()
        with contextlib.suppress(AssertionError):  # what is never answered is for the test to judge
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
    """Waits for the next millisecond of the clock. Proxies log in milliseconds: the line of a later request has a
    later time, whichever worker writes it."""
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

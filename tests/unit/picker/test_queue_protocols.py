"""Waiting requests on the wire: the responses of each proxy's protocol, and connections that end in the meantime."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest

from lbctl.ir.pools import PickPolicy, QueuePolicy
from lbctl.pick.table import Candidate, PoolTable
from lbctl.picker.admission import QuestionKey
from lbctl.picker.connection import PickerConnection
from lbctl.picker.connection_limits import ConnectionLimits
from lbctl.picker.http_api import HttpApi, RequestEnds
from lbctl.picker.process import connections
from lbctl.picker.service import PickService
from lbctl.picker.spop import SpopApi
from tests.support import spop
from tests.support.spop import string

NAME = "01234567-89ab-cdef-0123-456789abcde{}"
NGINX, ENVOY, ENVOY_WAIT = "/pick/chat", "/envoy?path=/v1/chat", "/envoy/wait?path=/v1/chat"
_ENVOY_HEAD = "x-lbctl-pool: chat\r\nx-lbctl-priority: high\r\n"
_ASKS_AGAIN = f"{_ENVOY_HEAD}x-lbctl-asks-again: 1\r\n"


class _Connection:
    """A connection of a proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def ask(self, target: str, head: str = "") -> None:
        self._writer.write(f"GET {target} HTTP/1.1\r\n{head}\r\n".encode())

    def stop_reading(self) -> None:
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    async def answer(self) -> tuple[int, dict[str, str]]:
        """Return the status and the headers of the next response."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        return int(first.split()[1]), dict(line.split(": ", 1) for line in lines)

    def send(self, frame: bytes) -> None:
        self._writer.write(frame)

    async def frame(self) -> bytes:
        size = await self._reader.readexactly(4)
        return size + await self._reader.readexactly(int.from_bytes(size, "big"))

    async def close(self) -> None:
        self._writer.transport.abort()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    async def reset(self) -> None:
        """Close the connection with RST, as after an error, although all responses have been read."""
        linger = struct.pack("ii", 1, 0)
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        await self.close()

    async def has_ended(self) -> bool:
        return await self._reader.read(1) == b""


class _Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class _Picker:
    """A picker with one replica for one request at a time."""

    def __init__(self, port: int, service: PickService, limits: ConnectionLimits, clock: _Clock) -> None:
        self._port = port
        self.service = service
        self.clock = clock
        self.limits = limits
        self._connections: list[_Connection] = []

    async def connect(self) -> _Connection:
        self._connections.append(connection := _Connection(*await asyncio.open_connection("127.0.0.1", self._port)))
        return connection

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()

    async def with_waiting(self, target: str = ENVOY, head: str = _ENVOY_HEAD) -> tuple[_Connection, str]:
        """Return the connection of a request that waits, and the id of the pick that keeps the replica busy."""
        running, waiting = await self.connect(), await self.connect()
        running.ask(ENVOY, _ENVOY_HEAD)
        _, headers = await running.answer()
        waiting.ask(target, head)
        await self.waits(1)
        return waiting, headers["x-lbctl-pick-id"]

    async def with_ticket(self) -> tuple[_Connection, str, str]:
        """Return the connection of an Envoy whose request has to wait, its id, and the id of the running pick."""
        running, waiting = await self.connect(), await self.connect()
        running.ask(ENVOY, _ASKS_AGAIN)
        _, picked = await running.answer()
        waiting.ask(ENVOY, _ASKS_AGAIN)
        status, headers = await waiting.answer()
        assert (status, headers["x-lbctl-must-wait"], headers.get("x-lbctl-replicas")) == (200, "1", None)
        return waiting, headers["x-lbctl-pick-id"], picked["x-lbctl-pick-id"]

    async def waits(self, count: int) -> None:
        """Return once this number of requests waits."""
        while len(self.service.queues) != count:
            await asyncio.sleep(0.01)

    async def picks(self, count: int) -> None:
        """Return once this number of requests has a replica."""
        while self.service.open_picks != count:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def _picker(limits: ConnectionLimits | None = None, queue: int = 2) -> AsyncIterator[_Picker]:
    clock = _Clock()
    service = PickService(clock, Random(1))
    policy = PickPolicy((), None, queue=QueuePolicy(10_000, queue))
    service.set_table("chat", PoolTable("chat", policy, (Candidate("a", "10.0.0.1:80", limit=1),)))
    limits = limits or ConnectionLimits()
    factory = connections(HttpApi(service, lambda: b""), limits, SpopApi(service, QuestionKey()))
    server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1")
    picker = _Picker(server.sockets[0].getsockname()[1], service, limits, clock)
    async with server, asyncio.timeout(30):
        try:
            yield picker
        finally:
            await picker.close()


def _run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def test_nginx_asks_again_and_gets_the_replica_later() -> None:
    async def test() -> None:
        async with _picker() as picker:
            first, second = await picker.connect(), await picker.connect()
            first.ask(NGINX)
            _, headers = await first.answer()
            second.ask(NGINX)
            assert (await second.answer())[0] == 401
            assert len(picker.service.queues) == 0, "it has not said that it waits"
            second.ask(f"{NGINX}?wait=1", f"x-lbctl-pick-id: {NAME.format(1)}\r\n")
            await picker.waits(1)
            picker.service.finished(headers["x-lbctl-pick-id"])
            status, headers = await second.answer()
            assert (status, headers["x-lbctl-pick"], headers["x-lbctl-pick-id"]) == (200, "a", NAME.format(1))
            second.ask(NGINX)
            assert (await second.answer())[0] == 401, "the connection serves further requests"

    _run(test)


@pytest.mark.parametrize(("target", "status"), [(NGINX, 403), (f"{NGINX}?wait=1", 403), (ENVOY, 429)])
def test_rejection_has_the_time_to_try_again(target: str, status: int) -> None:
    async def test() -> None:
        async with _picker(queue=1) as picker:
            for _ in range(2):
                (await picker.connect()).ask(ENVOY, _ENVOY_HEAD)
            await picker.waits(1)
            third = await picker.connect()
            third.ask(target, _ENVOY_HEAD)
            got, headers = await third.answer()
            assert (got, headers["x-lbctl-refused"], headers["x-lbctl-full"]) == (status, "10", "1")
            assert headers.get("retry-after", "10") == "10"

    _run(test)


def test_envoy_gets_the_replica_later_with_its_priority() -> None:
    async def test() -> None:
        async with _picker() as picker:
            _, pick = await picker.with_waiting(head=_ENVOY_HEAD.replace("high", "low"))
            third = await picker.connect()
            third.ask(ENVOY, _ENVOY_HEAD)
            await picker.waits(2)
            picker.service.finished(pick)
            status, headers = await third.answer()
            assert (status, headers["x-lbctl-replicas"]) == (200, "10.0.0.1:80")
            assert len(picker.service.queues) == 1

    _run(test)


def test_envoy_that_asks_again_keeps_its_place() -> None:
    async def test() -> None:
        async with _picker() as picker:
            first, place, pick = await picker.with_ticket()
            later = await picker.connect()
            later.ask(ENVOY, _ENVOY_HEAD)
            await picker.waits(2)
            first.ask(ENVOY_WAIT, f"x-lbctl-pick-id: {place}\r\n")
            await asyncio.sleep(0.05)
            picker.service.finished(pick)
            status, headers = await first.answer()
            assert (status, headers["x-lbctl-replicas"], headers["x-lbctl-pick-id"]) == (200, "10.0.0.1:80", place)
            assert len(picker.service.queues) == 1

    _run(test)


def test_replica_is_kept_until_envoy_asks_again() -> None:
    async def test() -> None:
        async with _picker() as picker:
            waiting, place, pick = await picker.with_ticket()
            picker.service.finished(pick)
            assert (picker.service.open_picks, len(picker.service.queues)) == (1, 0)
            waiting.ask(ENVOY_WAIT, f"x-lbctl-pick-id: {place}\r\n")
            assert (await waiting.answer())[1]["x-lbctl-replicas"] == "10.0.0.1:80"
            picker.clock.now += 60
            picker.service.serve_queues()
            assert picker.service.open_picks == 1

    _run(test)


@pytest.mark.parametrize("is_released", [False, True])
def test_place_ends_if_envoy_does_not_ask_again(*, is_released: bool) -> None:
    async def test() -> None:
        async with _picker() as picker:
            waiting, place, pick = await picker.with_ticket()
            if is_released:
                picker.service.finished(pick)
            picker.clock.now += 5
            picker.service.serve_queues()
            assert len(picker.service.queues) + picker.service.open_picks == 2 - is_released
            picker.clock.now += 5
            picker.service.serve_queues()
            assert (len(picker.service.queues), picker.service.open_picks) == (0, 1 - is_released)
            waiting.ask(ENVOY_WAIT, f"x-lbctl-pick-id: {place}\r\n")
            status, headers = await waiting.answer()
            assert (status, headers.get("x-lbctl-replicas")) == (200, None), "the request falls back to `otherwise`"

    _run(test)


def test_end_of_the_first_query_withdraws_only_without_a_second() -> None:
    """The idle connection of the first query may end while the second one waits."""

    async def test() -> None:
        async with _picker(queue=3) as picker:
            first, place, _ = await picker.with_ticket()
            second = await picker.connect()
            second.ask(ENVOY_WAIT, f"x-lbctl-pick-id: {place}\r\n")
            unread = await picker.connect()
            unread.stop_reading()
            unread.ask(ENVOY, _ASKS_AGAIN)
            await picker.waits(2)
            await unread.close()
            await picker.waits(1)
            await first.reset()
            await asyncio.sleep(0.05)
            assert len(picker.service.queues) == 1
            await second.close()
            await picker.waits(0)

    _run(test)


def test_closed_connection_withdraws_a_waiting_request() -> None:
    async def test() -> None:
        async with _picker() as picker:
            second, _ = await picker.with_waiting()
            await second.close()
            await picker.waits(0)
            assert picker.service.statistics.queues["chat"].left == 1

    _run(test)


@pytest.mark.parametrize("target", [f"{NGINX}?wait=1", ENVOY])
def test_release_in_the_instant_of_a_withdrawal_is_undone(target: str) -> None:
    """The event loop reports the end of a connection only after other events of the same round."""

    async def test() -> None:
        async with _picker() as picker:
            _, pick = await picker.with_waiting(target)
            (waiting,) = picker.limits._waiting
            assert isinstance(waiting, PickerConnection)
            assert waiting._transport is not None
            waiting.eof_received()
            waiting._transport.close()
            picker.service.finished(pick)
            await asyncio.sleep(0.05)
            assert (picker.service.open_picks, len(picker.service.queues)) == (0, 0)

    _run(test)


def test_release_to_a_closing_connection_is_undone() -> None:
    async def test() -> None:
        async with _picker() as picker:
            _, pick = await picker.with_waiting()
            (waiting,) = picker.limits._waiting
            assert isinstance(waiting, PickerConnection)
            assert waiting._transport is not None
            waiting._transport.close()
            picker.service.finished(pick)
            await asyncio.sleep(0.05)
            assert picker.service.open_picks == 0

    _run(test)


@pytest.mark.parametrize(("target", "remains"), [(f"{NGINX}?wait=1", False), (ENVOY, False), (NGINX, True)])
def test_unread_response_frees_the_replica(target: str, *, remains: bool) -> None:
    """Without a queue, nginx waits for the response although its client has left."""

    async def test() -> None:
        async with _picker() as picker:
            connection = await picker.connect()
            connection.stop_reading()
            connection.ask(target, _ENVOY_HEAD)
            await picker.picks(1)
            await connection.close()
            if not remains:
                await picker.picks(0)
            assert picker.service.open_picks == int(remains)

    _run(test)


def test_request_behind_a_waiting_one_ends_the_connection() -> None:
    """HTTP has no names for its responses, so a proxy sends no request before the response to the last one."""

    async def test() -> None:
        async with _picker() as picker:
            second, _ = await picker.with_waiting()
            second.ask(ENVOY, _ENVOY_HEAD)
            assert (await second.answer())[0] == 500
            await picker.waits(0)

    _run(test)


def test_haproxy_gets_its_answers_in_any_order() -> None:
    async def test() -> None:
        async with _picker() as picker:
            connection = await picker.connect()
            connection.send(spop.hello())
            await connection.frame()
            for number in (1, 2, 3):
                names = [("target", string("/pick/chat")), ("id", string(NAME.format(number)))]
                connection.send(spop.notify(names, number=number))
            assert await connection.frame() == spop.ack("a", number=1)
            await picker.waits(2)
            connection.send(spop.notify([("target", string("/pick/other"))], number=4))
            assert await connection.frame() == spop.ack(None, number=4)
            ends = RequestEnds(picker.service)
            ends.received(_end(2))
            await picker.waits(1)
            ends.received(_end(1))
            assert await connection.frame() == spop.ack("a", number=3)

    _run(test)


def _end(number: int) -> bytes:
    pick = NAME.format(number)
    head = "<134>1 2026-11-23T18:40:00+00:00 - haproxy 77 - "
    return f'{head}[lbctl@0 proxy="ha" end="--" retries="0" pick="{pick}"] x'.encode()


def test_haproxy_gets_a_rejection() -> None:
    async def test() -> None:
        async with _picker(queue=1) as picker:
            connection = await picker.connect()
            connection.send(spop.hello())
            await connection.frame()
            for number in (1, 2, 3):
                connection.send(spop.notify([("target", string("/pick/chat"))], number=number))
            await connection.frame()
            frame = await connection.frame()
            assert b"\x07refused\x08\x0210" in frame
            assert b"\x04full\x08\x011" in frame

    _run(test)


def test_waiting_connections_are_not_closed_for_new_ones() -> None:
    async def test() -> None:
        async with _picker(ConnectionLimits(2)) as picker:
            second, pick = await picker.with_waiting()
            idle = [await picker.connect() for _ in range(3)]
            assert await idle[0].has_ended()
            picker.service.finished(pick)
            assert (await second.answer())[0] == 200

    _run(test)


@pytest.mark.slow
def test_waiting_connection_outlives_the_idle_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbctl.picker.connection.QUESTION_TIMEOUT", 0.2)
    monkeypatch.setattr("lbctl.picker.connection.IDLE_TIMEOUT", 0.2)

    async def test() -> None:
        async with _picker() as picker:
            first, second = await picker.connect(), await picker.connect()
            first.ask(ENVOY, _ENVOY_HEAD)
            _, headers = await first.answer()
            second.ask(ENVOY, _ENVOY_HEAD)
            assert await first.has_ended()
            await asyncio.sleep(0.5)
            picker.service.finished(headers["x-lbctl-pick-id"])
            assert (await second.answer())[0] == 200
            assert await second.has_ended()

    _run(test)

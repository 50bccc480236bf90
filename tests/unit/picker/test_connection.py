"""A connection to the picker waits for slow readers, and is closed if it sends no query."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from lbctl.picker.connection import PickerConnection
from lbctl.picker.connection_limits import ConnectionLimits
from lbctl.picker.http_protocol import HttpAnswer, HttpProtocol, HttpRequest


def test_client_that_does_not_read_pauses_its_requests() -> None:
    asyncio.run(_unread())


def _connection(handle: Callable[[HttpRequest], HttpAnswer]) -> Callable[[], PickerConnection]:
    limits = ConnectionLimits()
    return lambda: PickerConnection(lambda _: HttpProtocol(handle), limits)


async def _unread() -> None:
    handled = 0

    def handle(_: HttpRequest) -> HttpAnswer:
        nonlocal handled
        handled += 1
        return HttpAnswer(200, b"x" * 50_000)

    server = await asyncio.get_running_loop().create_server(_connection(handle), "127.0.0.1")
    async with server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1], limit=1 << 16)
        writer.write(b"GET / HTTP/1.1\r\n\r\n" * 400)
        before = -1
        while before != handled or not handled:
            before = handled
            await asyncio.sleep(0.1)
        assert handled < 300
        length = len(HttpAnswer(200, b"x" * 50_000).encoded(keep=True))
        async with asyncio.timeout(60):
            await reader.readexactly(400 * length)
        assert handled == 400
        writer.close()


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\n\r\nGET /hea"])
def test_question_that_does_not_come_is_disconnected(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr("lbctl.picker.connection.QUESTION_TIMEOUT", 0.5)
    asyncio.run(_unfinished(sent))


async def _unfinished(sent: bytes) -> None:
    server = await asyncio.get_running_loop().create_server(_connection(lambda _: HttpAnswer(204)), "127.0.0.1")
    async with server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        writer.write(sent)
        async with asyncio.timeout(30):
            answer = b""
            with suppress(ConnectionResetError):
                while piece := await reader.read(1000):
                    answer += piece
        assert answer.count(b"HTTP/1.1 204") == sent.count(b"\r\n\r\n")
        writer.close()

"""The clients of the benchmarks: times and failures of a request."""

from __future__ import annotations

import asyncio

import pytest

from lbctl.demo.replica import HOST
from tests.benchmarks.peers.client import Clients, Planned, Sent

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


async def _answered(*parts: bytes, pause: float = 0.05, patience: float = 5.0) -> Sent:
    """Return the record of a request whose response consists of these parts."""
    has_ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        for part in parts:
            writer.write(part)
            await asyncio.sleep(pause)
        writer.close()
        has_ended.set()

    server = await asyncio.start_server(serve, HOST)
    clients = Clients(server.sockets[0].getsockname()[1], "key", patience)
    await clients.run([Planned(0.0, b"{}", "s")], asyncio.get_running_loop().time())
    await has_ended.wait()
    server.close()
    return clients.sent[0]


def test_first_token_and_end_are_measured() -> None:
    sent = asyncio.run(_answered(_HEAD, b"data: {}\n\n", b"data: [DONE]\n\n"))
    assert not sent.failed
    assert sent.at + 0.05 <= sent.first <= sent.last - 0.05


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ((b"HTTP/1.1 503 Service Unavailable\r\n\r\n",), "503"),
        ((_HEAD, b"data: {}\n\n"), "incomplete"),
        ((), "no answer"),
    ],
)
def test_failure_has_a_reason(parts: tuple[bytes, ...], reason: str) -> None:
    assert asyncio.run(_answered(*parts)).failed == reason


@pytest.mark.slow
def test_client_gives_up_after_a_silence_not_a_slow_answer() -> None:
    slow = asyncio.run(_answered(_HEAD, b"data: {}\n\n", b"data: {}\n\n", b"[DONE]", pause=0.15, patience=0.3))
    silent = asyncio.run(_answered(_HEAD, b"data: {}\n\n", pause=0.4, patience=0.1))
    assert (slow.failed, silent.failed) == ("", "nothing for 0 s")


def test_refused_connection_is_a_failure() -> None:
    async def refused() -> Sent:
        server = await asyncio.start_server(lambda _, __: None, HOST)
        port = server.sockets[0].getsockname()[1]
        server.close()
        clients = Clients(port, "key")
        await clients.run([Planned(0.0, b"{}", "s")], 0.0)
        return clients.sent[0]

    assert asyncio.run(refused()).failed == "ConnectionRefusedError"

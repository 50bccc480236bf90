"""Responses that the HTTP client of the control plane accepts, and their limits."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from lbctl.runtime.net import http_client
from lbctl.runtime.net.http_client import MAX_INTERIM

_END = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def _answer_after(interim: int) -> bytes:
    """Return the response of a server that first sends this number of interim responses."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * interim + _END)
        await reader.read()
        writer.close()

    async def run() -> bytes:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, http_client.session() as session, session.get(f"http://127.0.0.1:{port}") as response:
            return await response.read()

    return asyncio.run(run())


def test_server_may_send_few_interim_answers() -> None:
    assert _answer_after(MAX_INTERIM) == b"ok"
    with pytest.raises(aiohttp.ClientError, match="more than 16 interim responses"):
        _answer_after(MAX_INTERIM + 1)

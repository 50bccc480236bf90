"""Envoys ask by HTTP with headers for the pool and the rest, and get addresses; the status is 200 in each case."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from lbctl.ir.pools import PickPolicy, SessionKey
from lbctl.pick.table import Candidate, PoolTable
from lbctl.picker.http_api import HttpApi
from lbctl.picker.http_protocol import HttpRequest
from lbctl.picker.process import connections
from lbctl.picker.service import PickService

HOST = "127.0.0.1"
TABLE = PoolTable(
    "chat",
    PickPolicy((SessionKey(header="x-session-id"),)),
    (Candidate("a", "10.0.0.1:80", region="eu"), Candidate("b", "[2001:db8::1]:80", region="us")),
)
QUESTION = b"POST /envoy?path=/v1 HTTP/1.1\r\nx-lbctl-pool: chat\r\ncontent-length: 0\r\n\r\n"


def _service() -> PickService:
    service = PickService()
    service.set_table("chat", TABLE)
    return service


@pytest.mark.parametrize(
    ("headers", "replicas"),
    [
        ({"x-lbctl-pool": "chat", "x-lbctl-regions": "eu"}, "10.0.0.1:80"),
        ({"x-lbctl-pool": "chat", "x-lbctl-regions": "us,asia"}, "[2001:db8::1]:80"),
        ({"x-lbctl-pool": "chat", "x-lbctl-regions": "asia"}, None),
        ({"x-lbctl-pool": "other"}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("method", ["GET", "DELETE", "HEAD", "PROPFIND"])
def test_envoy_gets_addresses_for_any_method(headers: dict[str, str], replicas: str | None, method: str) -> None:
    service = _service()
    request = HttpRequest(method, "/envoy?path=/a?b=1", {key: [value] for key, value in headers.items()}, b"")
    answer = HttpApi(service, bytes).handle(request)
    assert (answer.status, answer.headers.get("x-lbctl-replicas"), service.open_picks) == (
        200, replicas, 1 if replicas else 0,
    )  # fmt: skip


def test_picker_without_tables_is_not_ready() -> None:
    service = _service()
    api, ready = HttpApi(service, bytes), HttpRequest("GET", "/ready", {}, b"")
    assert (api.handle(ready).status, api.handle(ready).body) == (200, b"lbctl picker ready\n")
    service.set_table("chat", None)
    assert api.handle(ready).status == 503


async def _left_by(client: Callable[[socket.socket, PickService], Awaitable[None]]) -> int:
    """Return the picks that are open after the connection of this client."""
    service = _service()
    server = await asyncio.get_running_loop().create_server(connections(HttpApi(service, bytes)), HOST, 0)
    async with server, asyncio.timeout(60):
        with socket.create_connection(server.sockets[0].getsockname()) as connection:
            connection.sendall(QUESTION)
            await client(connection, service)
        while not service.statistics.reasons:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        return service.open_picks


async def _gone_before_it_is_read(connection: socket.socket, _: PickService) -> None:
    connection.close()


async def _gone_before_it_reads(_: socket.socket, service: PickService) -> None:
    while not service.open_picks:
        await asyncio.sleep(0.01)


async def _gone_after_the_answer(connection: socket.socket, service: PickService) -> None:
    await _gone_before_it_reads(connection, service)
    assert connection.recv(4096).endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("client", "left"), [(_gone_before_it_is_read, 0), (_gone_before_it_reads, 0), (_gone_after_the_answer, 1)]
)
def test_pick_ends_if_its_envoy_did_not_wait(
    client: Callable[[socket.socket, PickService], Awaitable[None]], left: int
) -> None:
    """An Envoy closes the connection of a question that it gives up, and any connection if its cluster changes."""
    assert asyncio.run(_left_by(client)) == left

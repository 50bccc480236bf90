"""Envoys ask by HTTP with headers for the pool and the rest, and get addresses; the status is 200 in each case."""

from __future__ import annotations

import asyncio

import pytest

from lbctl.ir.pools import PickPolicy, SessionKey
from lbctl.pick.table import Candidate, PoolTable
from lbctl.serve.picker import http_protocol
from lbctl.serve.picker.http_api import HttpApi, connections
from lbctl.serve.picker.http_protocol import HttpRequest
from lbctl.serve.picker.service import PickService

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


@pytest.mark.parametrize(("seconds", "left"), [(60.0, 0), (0.0, 1)])
def test_pick_ends_if_its_envoy_did_not_wait(seconds: float, left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An Envoy closes the connection of a question that it gives up; a connection that is idle may end at any time."""
    monkeypatch.setattr(http_protocol, "_WITHDRAWN", seconds)

    async def run() -> None:
        service = _service()
        server = await asyncio.get_running_loop().create_server(connections(HttpApi(service, bytes)), HOST, 0)
        async with server, asyncio.timeout(60):
            reader, writer = await asyncio.open_connection(HOST, server.sockets[0].getsockname()[1])
            writer.write(QUESTION)
            await reader.readuntil(b"\r\n\r\n")
            assert service.open_picks == 1
            writer.close()
            await asyncio.sleep(0.3)
            assert service.open_picks == left

    asyncio.run(run())

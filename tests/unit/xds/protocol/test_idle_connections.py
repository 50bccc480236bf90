"""Connections without a call are closed at the limit, the oldest first; new ones and those with calls stay."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lbctl.xds.protocol import connection, idle_connections
from lbctl.xds.protocol.idle_connections import GRACE, IdleConnections

HOST = "127.0.0.1"


@contextmanager
def _listening() -> Iterator[tuple[int, Callable[[], socket.socket]]]:
    """Yield the port of a server, and a function that connects to it and returns the client."""
    opened: list[socket.socket] = []
    with socket.create_server((HOST, 0)) as listening:
        port = listening.getsockname()[1]

        def connect() -> socket.socket:
            client = socket.create_connection((HOST, port))
            opened.extend((client, listening.accept()[0]))
            client.settimeout(0.5)
            return client

        try:
            yield port, connect
        finally:
            for held in opened:
                held.close()


def _is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except TimeoutError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("has_descriptors", [True, False])
def test_oldest_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch, has_descriptors: bool) -> None:
    if not has_descriptors:
        monkeypatch.setattr(connection, "_DIRECTORY", Path("/proc/self/none"))

    async def run() -> None:
        now = 0.0
        with _listening() as (port, connect):
            busy: set[tuple[str, int]] = set()
            idle = IdleConnections(port, lambda: busy, most=2, clock=lambda: now)
            clients = []
            for _ in range(5):
                clients.append(connect())
                await idle.look()
                busy.add(clients[0].getsockname())
            now += GRACE
            await idle.look()
            assert [_is_closed(client) for client in clients] == [False, True, True, False, False]

    asyncio.run(run())


@pytest.mark.slow
def test_new_connections_stay_up_to_a_larger_limit() -> None:
    async def run() -> None:
        with _listening() as (port, connect):
            idle = IdleConnections(port, set, most=1, new=3, clock=lambda: 0.0)
            clients = [connect() for _ in range(3)]
            await idle.look()
            assert not any(map(_is_closed, clients))
            clients.append(connect())
            await idle.look()
            assert [_is_closed(client) for client in clients] == [True, False, False, False]

    asyncio.run(run())


def test_descriptors_of_others_cause_no_look_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, now = 1_000, 0.0
    monkeypatch.setattr(idle_connections, "_opened", lambda: opened)

    async def run() -> None:
        nonlocal opened, now
        with _listening() as (port, connect):
            connect()
            idle = IdleConnections(port, set, most=100, clock=lambda: now)
            assert idle.is_due()
            await idle.look()
            assert not idle.is_due()
            opened += 200
            assert idle.is_due()
            opened -= 200
            now += 60.0
            assert idle.is_due()

    asyncio.run(run())

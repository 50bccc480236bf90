"""Connections without a call are closed at the limit, the oldest first; those with calls stay."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from lbctl.xds.protocol import connection
from lbctl.xds.protocol.idle_connections import IdleConnections

HOST = "127.0.0.1"


@pytest.mark.parametrize("has_descriptors", [True, False])
def test_oldest_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch, has_descriptors: bool) -> None:
    if not has_descriptors:
        monkeypatch.setattr(connection, "_DIRECTORY", Path("/proc/self/none"))

    async def run() -> None:
        with socket.create_server((HOST, 0)) as listening:
            port = listening.getsockname()[1]
            busy: set[tuple[str, int]] = set()
            idle = IdleConnections(port, lambda: busy, most=2)
            clients: list[socket.socket] = []
            accepted: list[socket.socket] = []
            try:
                for _ in range(5):
                    clients.append(socket.create_connection((HOST, port)))
                    accepted.append(listening.accept()[0])
                    await idle.look()
                    busy.add(clients[0].getsockname())
                for client in clients:
                    client.settimeout(0.5)
                assert [_is_closed(client) for client in clients] == [False, True, True, False, False]
            finally:
                for held in (*clients, *accepted):
                    held.close()

    asyncio.run(run())


def _is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except TimeoutError:
        return False

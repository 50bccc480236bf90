"""When a process has grown, the connections with unread messages are closed, and no others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lbctl.xds.protocol import unread_messages
from lbctl.xds.protocol.unread_messages import MAX_GROWTH, MIN_UNREAD, UnreadMessages

HOST = "127.0.0.1"


@contextmanager
def _connections(*sizes: int) -> Iterator[tuple[int, list[socket.socket]]]:
    """Yield the port of a server that accepts this number of bytes per client, and the clients."""
    held: list[socket.socket] = []
    with socket.create_server((HOST, 0)) as listening:
        port = listening.getsockname()[1]
        try:
            clients = []
            for size in sizes:
                client = socket.create_connection((HOST, port))
                accepted, _ = listening.accept()
                held += [client, accepted]
                clients.append(client)
                for _ in range(size // 10_000):
                    client.sendall(bytes(10_000))
                    accepted.recv(10_000, socket.MSG_WAITALL)
            yield port, clients
        finally:
            for connection in held:
                connection.close()


def _is_closed(client: socket.socket) -> bool:
    client.settimeout(0.2)
    try:
        return client.recv(1) == b""
    except TimeoutError:
        return False


@pytest.mark.slow
def test_connection_with_most_unread_bytes_is_closed() -> None:
    with _connections(2 * MIN_UNREAD, 4 * MIN_UNREAD, 8 * MIN_UNREAD, 10_000) as (port, clients):
        memory = iter([0, 3 * MIN_UNREAD])
        unread = UnreadMessages(set, lambda: next(memory))
        assert unread._grown() == 0
        unread.begin(clients[2].getsockname())
        unread.note_read(clients[2].getsockname(), 8 * MIN_UNREAD)
        assert unread.look(port) == 1
        assert [_is_closed(client) for client in clients] == [False, True, False, False]


def test_memory_is_watched_while_clients_have_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread_messages, "_IDLE_INTERVAL", 0.01)

    async def run() -> None:
        with _connections(MIN_UNREAD + 10_000) as (port, [client]):
            memory = [0]
            unread = UnreadMessages(lambda: [client.getsockname()], lambda: memory[0])
            watch = asyncio.create_task(unread.run(port))
            unread.begin(client.getsockname())
            await asyncio.sleep(0.1)
            assert not _is_closed(client)
            memory[0] = MAX_GROWTH + 1
            async with asyncio.timeout(30):
                while not _is_closed(client):
                    await asyncio.sleep(0.01)
            watch.cancel()

    asyncio.run(run())


def test_clients_that_have_left_are_forgotten() -> None:
    with _connections(10_000) as (port, [client]):
        unread = UnreadMessages(lambda: [("10.0.0.1", 1)])
        for peer in (client.getsockname(), ("10.0.0.1", 1), ("10.0.0.2", 2)):
            unread.begin(peer)
        unread._forget(unread_messages.connections_of(port))
        assert set(unread._read) == {client.getsockname(), ("10.0.0.1", 1)}


@pytest.mark.parametrize(("sent", "closed"), [(3_000, 0), (30_000, 1)])
def test_slow_bytes_of_old_connections_are_not_messages(sent: int, closed: int) -> None:
    with socket.create_server((HOST, 0)) as listening:
        port = listening.getsockname()[1]
        client = socket.create_connection((HOST, port))
        accepted, _ = listening.accept()
        with client, accepted:
            memory = iter([0, MAX_GROWTH + 1])
            unread = UnreadMessages(set, lambda: next(memory))
            unread._grown()
            unread.begin(client.getsockname())
            for _ in range(100):
                client.sendall(bytes(sent))
                accepted.recv(sent, socket.MSG_WAITALL)
                unread._forgive(unread_messages.connections_of(port))
            assert unread.look(port) == closed

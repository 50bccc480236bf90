"""The connections of this process, found among its sockets because gRPC does not expose them.

gRPC cannot end a call while a message waits for the client: it rejects a status, and a cancelled write leaks its
buffers. Instead, the socket is shut down, and gRPC handles this as a lost connection.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from lbctl.base.hosts import normal_host

Client = tuple[str, int]
"""Host and port of a TCP client."""
_DIRECTORY = Path("/proc/self/fd")


def close_connection(host: str, port: int) -> bool:
    """Shut down this process's connections to a client's address. Return False if no connection is found.

    The search checks each of the process's descriptors, which takes milliseconds if there are thousands.
    """
    peer = normal_host(host), port
    closed = [_shut_down(descriptor, peer) for descriptor in descriptors()]
    return any(closed)


def descriptors() -> list[int]:
    """Return the descriptors of this process, roughly in the order in which they were opened.

    If no descriptor is free for listing them, return all possible numbers.
    """
    try:
        return sorted(int(entry.name) for entry in _DIRECTORY.iterdir())
    except OSError:
        return list(range(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))


def connections_of(port: int) -> dict[Client, int]:
    """Map each client to the descriptor of its connection to a port of this process, oldest first."""
    found: dict[Client, int] = {}
    for descriptor in descriptors():
        with suppress(OSError), borrowed(descriptor) as connection:
            client = peer_of_socket(connection)
            if client is not None and connection.getsockname()[1] == port:
                found[client] = descriptor
    return found


def shut_down(chosen: Mapping[Client, int]) -> None:
    """Shut down the connections of these clients, unless their descriptors have been reused."""
    for client, descriptor in chosen.items():
        _shut_down(descriptor, client)


@contextmanager
def borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Yield the socket of a descriptor. Raises OSError if it is not a socket.

    The descriptor is neither duplicated nor closed: closing a file would release the locks that the process has on it.
    """
    connection = socket.socket(fileno=descriptor)
    try:
        yield connection
    finally:
        connection.detach()


def _shut_down(descriptor: int, peer: Client) -> bool:
    """Shut down the descriptor if it is a socket that is connected to the peer."""
    with suppress(OSError), borrowed(descriptor) as connection:
        if peer_of_socket(connection) == peer:
            connection.shutdown(socket.SHUT_RDWR)
            return True
    return False


def peer_of_socket(connection: socket.socket) -> Client | None:
    """Return the peer's host and port for a TCP connection, or None for any other socket. Raises OSError."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
        return None
    name = connection.getpeername()
    return normal_host(name[0]), name[1]

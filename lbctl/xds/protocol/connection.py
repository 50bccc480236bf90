"""Closes the connection of a client that does not read.

gRPC cannot end a call while a message of it waits for the client: it refuses a status, and a cancelled write leaks its
buffers. So the socket is shut down, which gRPC then notices as it does the loss of any connection.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from pathlib import Path


def close_connection(host: str, port: int) -> bool:
    """Shut down the connections of this process to that address of a client; False where there is none.

    It looks at every descriptor of the process, which takes milliseconds where there are thousands.
    """
    peer = normal_host(host), port
    closed = [_shut_down(int(entry.name), peer) for entry in Path("/proc/self/fd").iterdir()]
    return any(closed)


def _shut_down(descriptor: int, peer: tuple[str, int]) -> bool:
    """Shut down the socket if this is one, and connected to the peer.

    The descriptor is neither duplicated nor closed: where it is of a file that would release the locks of the process.
    """
    try:
        candidate = socket.socket(fileno=descriptor)
    except OSError:
        return False
    try:
        with suppress(OSError):
            if peer_of_socket(candidate) == peer:
                candidate.shutdown(socket.SHUT_RDWR)
                return True
        return False
    finally:
        candidate.detach()


def peer_of_socket(connection: socket.socket) -> tuple[str, int] | None:
    """Return the host and the port that a TCP connection leads to; None for another socket. Raises OSError."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
        return None
    name = connection.getpeername()
    return normal_host(name[0]), name[1]


def normal_host(host: str) -> str:
    """Return the address without brackets and zone; that of IPv4 in IPv6 as IPv4."""
    address = ip_address(host.strip("[]").partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)

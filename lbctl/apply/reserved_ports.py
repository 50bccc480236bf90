"""Reserves ports for servers that are started later.

After a port has been bound and released, the system can assign it to another process or an outgoing connection before
the server binds it. Two HAProxy processes would even share the port, because both set SO_REUSEPORT. For this reason,
the socket remains bound without listening. Connections are then refused, and the system does not assign the port to
other processes. Servers that set SO_REUSEADDR, such as nginx, HAProxy, Envoy and Python's servers, can listen on the
port. Linux only.
"""

from __future__ import annotations

import socket

LOOPBACK = "127.0.0.1"


def reserve(port: int = 0, host: str = LOOPBACK, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """Return a socket bound to the port, or to any free port if it is 0. Closing the socket ends the reservation.

    Raises OSError if a socket without SO_REUSEPORT is bound to the port.
    """
    bound = socket.socket(socket.AF_INET, kind)
    try:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            bound.setsockopt(socket.SOL_SOCKET, option, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


def port_of(bound: socket.socket) -> int:
    """Return the port to which the socket is bound."""
    port: int = bound.getsockname()[1]
    return port
